// Package services roots the module of the four NATS services; it has no code of its own.
package services
