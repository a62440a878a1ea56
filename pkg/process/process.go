// Package process is what stands around the Run of every KubeBYON process: arguments, configuration, log, telemetry,
// signals, exit status. It must know nothing of what the process does.
package process

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/kubebyon/kubebyon/pkg/lifecycle"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

// flushTime is how long telemetry may take to be sent at the end.
const flushTime = 5 * time.Second

// The exit statuses.
const (
	exitOK     = 0
	exitFailed = 1 // it ran and ended in an error
	exitUsage  = 2 // wrong arguments or a wrong variable, named in one line; nothing was started
)

// Config is a configuration that embeds config.Common.
type Config interface {
	LogSettings() (format, level string)
}

// Process is one program.
type Process[C Config] struct {
	Name string                                                   // kubebyon-…; names it in errors and traces
	Load func(lookup func(string) (string, bool)) (C, error)      // its error is one line that names the variable
	Run  func(ctx context.Context, cfg C, log *slog.Logger) error // until ctx ends, which is no failure
}

// Main runs p until ctx ends or a signal comes, and gives the exit status. It takes no arguments but --version.
func Main[C Config](ctx context.Context, p Process[C], args []string, lookup func(string) (string, bool), stderr io.Writer) int {
	fail := func(status int, err error) int {
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
		return status
	}
	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	version := flags.Bool("version", false, "print the version and end")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	case flags.NArg() > 0:
		return fail(exitUsage, errors.New("it takes no arguments; it is configured by KUBEBYON_ variables"))
	case *version:
		fmt.Fprintln(stderr, Version())
		return exitOK
	}
	cfg, err := p.Load(lookup)
	if err != nil {
		return fail(exitUsage, err)
	}
	ctx, stop := lifecycle.WithSignals(ctx)
	defer stop()
	format, level := cfg.LogSettings()
	log := telemetry.NewLogger(stderr, format, level)
	flush, err := telemetry.Setup(ctx, p.Name, Version(), log)
	if err != nil {
		return fail(exitUsage, err)
	}
	err = p.Run(ctx, cfg, log)
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	if err := flush(bounded); err != nil {
		log.WarnContext(ctx, "telemetry not flushed", slog.Any("error", err))
	}
	if err != nil {
		return fail(exitFailed, err)
	}
	return exitOK
}

// version is set by the linker (-X …/pkg/process.version=v1.2.3).
var version string

// Version is what this binary was built from: the linker's word, else the module's version, else "devel".
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
