package process_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/config"
	"github.com/kubebyon/kubebyon/pkg/process"
)

type settings struct {
	config.Common
	Size int `env:"KUBEBYON_SIZE" envDefault:"1" accepts:"a whole number"`
}

func TestMainGivesTheExitStatus(t *testing.T) {
	broken := errors.New("the pump is broken")
	for _, c := range []struct {
		name   string
		args   []string
		env    map[string]string
		run    error
		status int
		says   string // on one line, or nothing
		starts bool
	}{
		{name: "an orderly end", starts: true},
		{name: "a failure", run: broken, status: 1, says: "kubebyon-pump: the pump is broken", starts: true},
		{name: "a wrong variable", env: map[string]string{"KUBEBYON_SIZE": "big"}, status: 2, says: "KUBEBYON_SIZE"},
		{name: "a wrong log format", env: map[string]string{"KUBEBYON_LOG_FORMAT": "xml"}, status: 2, says: "KUBEBYON_LOG_FORMAT"},
		{name: "an argument", args: []string{"up"}, status: 2, says: "it takes no arguments"},
		{name: "the version", args: []string{"--version"}, says: process.Version()},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stderr bytes.Buffer
			started := false
			status := process.Main(t.Context(), process.Process[settings]{
				Name: "kubebyon-pump", Load: config.Load[settings],
				Run: func(_ context.Context, cfg settings, log *slog.Logger) error {
					started = true
					if cfg.Size != 1 || log == nil {
						t.Errorf("it runs with %+v and log %v", cfg, log)
					}
					return c.run
				},
			}, c.args, func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }, &stderr)
			text := strings.TrimRight(stderr.String(), "\n")
			if status != c.status || started != c.starts {
				t.Errorf("status %d, started %t; want %d, %t", status, started, c.status, c.starts)
			}
			if !strings.Contains(text, c.says) || strings.Contains(text, "\n") || (c.says == "" && text != "") {
				t.Errorf("it says %q, want one line with %q", text, c.says)
			}
		})
	}
}
