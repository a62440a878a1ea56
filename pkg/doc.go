// Package pkg holds what every process of KubeBYON shares; it has no code of its own.
package pkg
