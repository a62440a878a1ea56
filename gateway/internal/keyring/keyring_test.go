package keyring

import (
	"bytes"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

func TestSealAndOpen(t *testing.T) {
	first, second := New(), New()
	older, err := Parse(first + "\n")
	if err != nil {
		t.Fatal(err)
	}
	newer, err := Parse("\n" + second + "\n" + first)
	if err != nil {
		t.Fatal(err)
	}
	const secret, place = "JBSWY3DPEHPK3PXP", "users.totp_secret/usr_a"
	sealed, err := older.Seal(secret, place)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := older.Seal(secret, place); bytes.Contains(sealed, []byte(secret)) || bytes.Equal(again, sealed) {
		t.Error("it is in clear, or the same twice")
	}
	if plain, err := newer.Open(sealed, place); err != nil || plain != secret {
		t.Errorf("a new key on top: %q, %v", plain, err)
	}
	sealed2, err := newer.Seal(secret, place)
	if err != nil {
		t.Fatal(err)
	}
	broken := bytes.Clone(sealed)
	broken[len(broken)-1] ^= 1
	for name, c := range map[string]struct {
		k      Keyring
		sealed []byte
		place  string
		code   string
	}{
		"another row": {older, sealed, "users.totp_secret/usr_b", "encryption_key_wrong"},
		"without key": {Keyring{}, sealed, place, "encryption_key_unset"},
		"the new key": {older, sealed2, place, "encryption_key_wrong"},
		"changed":     {older, broken, place, "encryption_key_wrong"},
		"cut short":   {older, sealed[:10], place, "encryption_key_wrong"},
		"empty":       {older, nil, place, "encryption_key_wrong"},
	} {
		if plain, err := c.k.Open(c.sealed, c.place); plain != "" || err == nil || fault.From(err).Code != c.code {
			t.Errorf("%s: %q, %v", name, plain, err)
		}
	}
	if _, err := (Keyring{}).Seal("x", place); !fault.Is(err, fault.Precondition) {
		t.Error(err)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"", "\n \n", "short", strings.Repeat("A", 44), New() + "\ncanary-key"} {
		if _, err := Parse(text); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
