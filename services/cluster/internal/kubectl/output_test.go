package kubectl

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
)

func TestOutputIsShownAndObeyedByNoTerminal(t *testing.T) {
	for said, want := range map[string]string{
		"NAME\tREADY\nweb-1\t1/1\n": "NAME\tREADY\nweb-1\t1/1\n",
		"\x1b[31mred\x1b[0m":        "^[[31mred^[[0m",
		"\x1b]0;title\a":            "^[]0;title^G",
		"a\rb\b\x00\x7f":            "a^Mb^H^@^?",
		"\u009b31m":                 "<U+009B>31m",
		"\u202egnp.exe":             "<U+202E>gnp.exe",
		"\u2028":                    "<U+2028>",
		"grüße 世界 🎉":                "grüße 世界 🎉",
		"\xff\xfe ok \xc3":          "\uFFFD\uFFFD ok \uFFFD",
		"\xed\xa0\x80":              "\uFFFD\uFFFD\uFFFD",
	} {
		o := &output{left: 1 << 10}
		s := o.stream()
		for i := range len(said) { // however it is cut
			if n, err := s.Write([]byte{said[i]}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if got := s.finish(); got != want || o.truncated {
			t.Errorf("%q is shown as %q, want %q", said, got, want)
		}
	}
}

func TestOutputIsBoundedTogether(t *testing.T) {
	o := &output{left: 10}
	a, b := o.stream(), o.stream()
	_, _ = a.Write([]byte("12<\n")) // 1+1+6+2
	if o.truncated {
		t.Error("it fits")
	}
	_, _ = b.Write([]byte("x"))
	if a.finish() != "12<\n" || b.finish() != "" || !o.truncated {
		t.Errorf("%q, %q", a.text, b.text)
	}
}

func FuzzOutput(f *testing.F) {
	f.Add([]byte("\x1b[31mred\xff"), []byte("世\xe4"), 1)
	f.Add([]byte(strings.Repeat("<\n\"", 50)), []byte("\u2028\u009b"), 2)
	f.Fuzz(func(t *testing.T, a, b []byte, cut int) {
		const limit = 200
		o := &output{left: limit}
		out, err := o.stream(), o.stream()
		at := 0
		if len(a) > 0 {
			at = int(uint(cut) % uint(len(a)))
		}
		_, _ = out.Write(a[:at])
		_, _ = err.Write(b)
		_, _ = out.Write(a[at:])
		stdout, stderr := out.finish(), err.finish()
		size := 0
		for _, text := range []string{stdout, stderr} {
			if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool {
				return r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
			}) {
				t.Fatalf("%q", text)
			}
			encoded, e := json.Marshal(text)
			if e != nil {
				t.Fatal(e)
			}
			size += len(encoded) - len(`""`)
		}
		if size > limit {
			t.Fatalf("%d bytes", size)
		}
		if whole := show(a); !o.truncated && stdout != whole || !strings.HasPrefix(whole, stdout) {
			t.Fatalf("%q in pieces is %q, and %q whole", a, stdout, whole)
		}
	})
}

func show(p []byte) string {
	s := (&output{left: clusterv1.MaxKubectlOutput}).stream()
	_, _ = s.Write(p)
	return s.finish()
}
