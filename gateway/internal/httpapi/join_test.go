package httpapi

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

func sh(t *testing.T, script string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.Command("sh", "-")
	cmd.Dir = t.TempDir()
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(script), &out, &errs
	_ = cmd.Run()
	if left, _ := os.ReadDir(cmd.Dir); len(left) > 0 {
		t.Errorf("the script made %s", left[0].Name())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestRefusalSaysWhyAndFails(t *testing.T) {
	trace := strings.Repeat("a", 32)
	for _, text := range []string{
		"the token has expired", "it's over", `'; touch owned; '`, "$(touch owned)`touch owned`", `%s %d \n \\`, "'", `\`, "a\nb", "red \x1b[31m", "\xff", "-n", "\u202etxet",
	} {
		stdout, stderr, status := sh(t, refusal(fault.New(fault.NotFound, "token_unknown", "%s", text).Do("ask %s", text), trace))
		if stdout != "" || status != 1 || !strings.HasPrefix(stderr, "KubeBYON: ") || strings.Count(stderr, "\n") != 3 ||
			!strings.Contains(stderr, "What to do: ask ") || !strings.Contains(stderr, "code token_unknown, trace "+trace) || strings.ContainsAny(stderr, "\x1b\u202e") {
			t.Errorf("%q: status %d, stdout %q, stderr %q", text, status, stdout, stderr)
		}
		if plain := strings.Contains(text, "over") || strings.Contains(text, "%s"); plain && !strings.Contains(stderr, "KubeBYON: "+text+".\n") {
			t.Errorf("%q is not what stands in %q", text, stderr)
		}
	}
}

func TestRefusalCutShortDoesNothing(t *testing.T) {
	script := refusal(fault.New(fault.NotFound, "token_unknown", "it's unknown").Do("make a new one"), strings.Repeat("a", 32))
	last := strings.LastIndex(script, "kubebyon_refused")
	for n := 0; n < last; n += 5 {
		if stdout, stderr, _ := sh(t, script[:n]); stdout != "" || strings.Contains(stderr, "KubeBYON: ") {
			t.Fatalf("cut at %d it did something: %q %q", n, stdout, stderr)
		}
	}
}

func TestRefusalIsCleanShell(t *testing.T) {
	path := filepath.Join(t.TempDir(), "refusal.sh")
	if err := os.WriteFile(path, []byte(refusal(fault.New(fault.NotFound, "x", "it's $HOME").Do("y"), "z")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, shell := range []string{"dash", "bash", "busybox"} {
		if _, err := exec.LookPath(shell); err != nil {
			continue // the shells that there are; sh itself always is
		}
		args := []string{"-n", path}
		if shell == "busybox" {
			args = append([]string{"sh"}, args...)
		}
		if out, err := exec.Command(shell, args...).CombinedOutput(); err != nil {
			t.Errorf("%s: %s", shell, out)
		}
	}
}
