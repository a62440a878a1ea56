// Package mirror fills the folder that workers download from. It must never put anything there that workers do not
// need.
package mirror

import (
	"context"
	"errors"

	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
)

// Fill fills dir.
func Fill(ctx context.Context, l layout.Layout, dir string, say func(format string, args ...any)) error {
	return errors.New("not yet")
}
