// Package postgres makes the node service's table. It must never be asked for nodes: those are read live.
package postgres

import (
	"embed"
	"io/fs"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations makes the table nodes; it is safe with several replicas starting at once (see pkg/postgres).
func Migrations() fs.FS {
	sub, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return migrations // the name is a constant: it is always valid
	}
	return sub
}
