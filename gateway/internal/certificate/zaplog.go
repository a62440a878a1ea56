package certificate

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo gives certmagic's logger, which ends in log. What it says step by step is for debugging; its own debugging, which holds
// requests and answers, is dropped.
func zapTo(log *slog.Logger) *zap.Logger { return zap.New(&zapCore{log: log}) }

type zapCore struct {
	log    *slog.Logger
	fields []zapcore.Field
}

// Enabled implements zapcore.LevelEnabler.
func (c *zapCore) Enabled(level zapcore.Level) bool { return level >= zapcore.InfoLevel }

// With implements zapcore.Core.
func (c *zapCore) With(fields []zapcore.Field) zapcore.Core {
	return &zapCore{log: c.log, fields: append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

// Check implements zapcore.Core.
func (c *zapCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c *zapCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelDebug
	if entry.Level >= zapcore.WarnLevel {
		level = slog.LevelWarn
	}
	said := zapcore.NewMapObjectEncoder()
	for _, field := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		field.AddTo(said)
	}
	attributes := make([]slog.Attr, 0, len(said.Fields))
	for name, value := range said.Fields {
		attributes = append(attributes, slog.Any(name, value))
	}
	c.log.LogAttrs(context.Background(), level, "acme", slog.String("step", entry.Message), slog.Attr{Key: "about", Value: slog.GroupValue(attributes...)})
	return nil
}

// Sync implements zapcore.Core.
func (c *zapCore) Sync() error { return nil }
