package telemetry

import (
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// Secret is a string that no printer, logger or encoder shows. string(s) alone gives the text, so each use stands out
// in review. encoding/json alone shows it where it is the key of a map: never make it one.
type Secret string

// String hides the text.
func (Secret) String() string { return redacted }

// GoString hides the text from %#v.
func (Secret) GoString() string { return redacted }

// Format hides the text from every verb, %x and %d too.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue hides the text from slog.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON hides the text from encoding/json.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText hides the text from encoders that ask for text, such as XML.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
