// Package arch holds the import directions of docs/architecture in a test. It has no code of its own and nothing imports
// it.
package arch
