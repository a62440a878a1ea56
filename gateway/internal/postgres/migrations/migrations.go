// Package migrations holds the gateway's tables as goose files. A file that has been released is never edited.
package migrations

import "embed"

// FS has the files at its root.
//
//go:embed *.sql
var FS embed.FS
