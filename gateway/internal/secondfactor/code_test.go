package secondfactor

import (
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	for text, want := range map[string]given{
		"123456": {time: "123456"}, " 123 456 ": {time: "123456"}, "123-456": {time: "123456"},
		"abcd-efgh-ijkl-mnop": {recovery: "ABCDEFGHIJKLMNOP"}, "ABCD EFGH ijkl mn27": {recovery: "ABCDEFGHIJKLMN27"},
		"0bcd-1fgh-8jkl-mnop": {recovery: "OBCDIFGHBJKLMNOP"},
		"":                    {}, "12345": {}, "1234567": {}, "12345a": {}, "+12345": {}, "１２３４５６": {}, "١٢٣٤٥٦": {}, "123456\n": {}, "123\u00a0456": {},
		"abcdefghıjklmnop": {}, "abcdefghijklmno": {}, "abcdefghijklmno9": {}, "123456" + strings.Repeat(" ", 100): {}, "\xff23456": {},
	} {
		if got := read(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func TestRecoveryCodesAreRead(t *testing.T) {
	shown, hashes := newRecoveryCodes("usr_x")
	seen := map[string]bool{}
	for i, code := range shown {
		g := read(code)
		if string(hashRecovery("usr_x", g.recovery)) != string(hashes[i]) || string(hashRecovery("usr_y", g.recovery)) == string(hashes[i]) || seen[code] {
			t.Errorf("%q is read as %+v", code, g)
		}
		seen[code] = true
	}
	if len(seen) != recoveryCodes {
		t.Errorf("%d codes", len(seen))
	}
}

func FuzzRead(f *testing.F) {
	for _, seed := range []string{"123 456", "12-34-56", "abcd-efgh-ijkl-mnop", "１２３４５６", "ı", "\xff", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		g := read(text)
		if g.time != "" && (g.recovery != "" || !timeForm.MatchString(g.time)) || g.recovery != "" && !recoveryForm.MatchString(g.recovery) {
			t.Errorf("%q: %+v", text, g)
		}
		// What is taken is what was typed, less blanks and dashes.
		for _, r := range text {
			if r > 127 && g != (given{}) {
				t.Errorf("%q: %+v", text, g)
			}
		}
	})
}
