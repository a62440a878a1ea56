package leash_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/test/internal/leash"
)

func gone(t *testing.T, path string) {
	t.Helper()
	for range 400 {
		if _, err := os.Stat(path); os.IsNotExist(err) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s is still there", path)
}

func pid(t *testing.T, dir, name string) string {
	t.Helper()
	for range 200 {
		if b, err := os.ReadFile(filepath.Join(dir, name+".pid")); err == nil && len(b) > 1 {
			return strings.TrimSpace(string(b))
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("it does not start")
	return ""
}

func TestCloseEndsEverything(t *testing.T) {
	for _, signal := range []string{"KILL", "TERM"} {
		dir := filepath.Join(t.TempDir(), "it's a folder")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := leash.Start(dir, nil, signal, leash.Command{Name: "a", Args: []string{"/bin/sleep", "1000"}},
			leash.Command{Name: "b", Args: []string{"/bin/sh", "-c", "echo 'it''s out'; exec sleep 1000"}})
		if err != nil {
			t.Fatal(err)
		}
		a, b := pid(t, dir, "a"), pid(t, dir, "b")
		if text := l.Dead("a", "b"); text != "" {
			t.Fatal(text)
		}
		l.Close()
		l.Close()
		gone(t, "/proc/"+a)
		gone(t, "/proc/"+b)
		gone(t, dir)
	}
}

func TestDeathIsNoticedWithItsLog(t *testing.T) {
	dir := t.TempDir()
	l, err := leash.Start(dir, nil, "KILL", leash.Command{Name: "a", Args: []string{"/bin/sh", "-c", "echo no room; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Keep(); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if strings.Contains(l.Dead("a"), "no room") {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("got %q", l.Dead("a"))
}

// SIGKILL of the owner leaves nothing, though it can run nothing.
func TestKilledOwner(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelper$")
	cmd.Env = append(os.Environ(), "LEASH_DIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	child := pid(t, dir, "a")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if line != "up\n" {
		t.Fatalf("the helper said %q", line)
	}
	gone(t, "/proc/"+child)
	gone(t, dir)
}

func TestHelper(t *testing.T) {
	dir := os.Getenv("LEASH_DIR")
	if dir == "" {
		return
	}
	if _, err := leash.Start(dir, nil, "TERM", leash.Command{Name: "a", Args: []string{"/bin/sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdout.WriteString("up\n")
	time.Sleep(time.Hour)
}
