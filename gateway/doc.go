// Package gateway roots the module of the HTTP edge; it has no code of its own.
package gateway
