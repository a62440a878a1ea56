package haproxy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/haproxytech/client-native/v5/configuration"
	"github.com/haproxytech/client-native/v5/configuration/options"
)

const draftPrefix = ".draft-"

// draft is a copy of the configuration that client-native edits. The real file is never given to it: it would write over what
// others changed, keep in memory what HAProxy refused, and leave the file open to other users.
type draft struct {
	dir    string
	client configuration.Configuration
	id     string // of client-native's own transaction, the only one of this copy
}

// openDraft copies text. Close it.
func (p *Plane) openDraft(ctx context.Context, text string) (_ *draft, err error) {
	program, err := p.program()
	if err != nil {
		return nil, err // client-native asks it for its version
	}
	dir, err := os.MkdirTemp(p.dir, draftPrefix)
	if err != nil {
		return nil, fmt.Errorf("copy the configuration: %w", err)
	}
	d := &draft{dir: dir}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if err := os.WriteFile(d.path(), []byte(withVersion(text, 1)), 0o600); err != nil {
		return nil, fmt.Errorf("copy the configuration: %w", err)
	}
	d.client, err = configuration.New(ctx,
		options.ConfigurationFile(d.path()), options.HAProxyBin(program), options.TransactionsDir(filepath.Join(dir, "transactions")),
		options.SkipConfigurationFileValidation, options.SkipFailedTransactions, options.UseModelsValidation)
	if err != nil {
		return nil, err
	}
	tx, err := d.client.StartTransaction(1)
	if err != nil {
		return nil, err
	}
	d.id = tx.ID
	return d, nil
}

func (d *draft) path() string { return filepath.Join(d.dir, configFile) }

// text is the draft as it is now.
func (d *draft) text() string {
	parser, err := d.client.GetParser(d.id)
	if err != nil {
		return ""
	}
	return parser.String()
}

func (d *draft) close() {
	if d != nil {
		_ = os.RemoveAll(d.dir)
	}
}

// commit gives the draft as client-native would have saved it. It ends the draft.
func (d *draft) commit() (string, error) {
	if _, err := d.client.CommitTransaction(d.id); err != nil {
		return "", err
	}
	text, err := os.ReadFile(d.path())
	if err != nil {
		return "", fmt.Errorf("read the changed configuration: %w", err)
	}
	return string(text), nil
}
