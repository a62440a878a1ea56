package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const line = "4242 (a) b (c) S 1 4242 4242 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 10"
	start, state, err := parseStat([]byte(line))
	if err != nil || start != 987654 || state != 'S' {
		t.Errorf("start %d, state %c, error %v", start, state, err)
	}
	for _, bad := range []string{"", "1 (x", "1 (x) S 2 3"} {
		if _, _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestParseCgroups(t *testing.T) {
	all, err := ParseCgroups("4:memory:/a/b\n2:name=systemd:/\n1:cpu,cpuacct:/x:y\n0::/u\n")
	if err != nil || len(all) != 4 {
		t.Fatalf("%v, error %v", all, err)
	}
	if all[0].Path != "/a/b" || all[1].Controllers != "name=systemd" || all[2].Path != "/x:y" || all[3].Controllers != "" {
		t.Errorf("got %+v", all)
	}
	if _, err := ParseCgroups("nonsense\n"); err == nil {
		t.Error("nonsense was accepted")
	}
}

func start(t *testing.T, script string) Record {
	t.Helper()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Command{Name: "test", Path: shell, Args: []string{"-c", script}, Env: []string{"PATH=/bin:/usr/bin"}, Log: filepath.Join(t.TempDir(), "log")}.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop(t.Context(), 0) })
	return r
}

func TestStop(t *testing.T) {
	obedient, stubborn := start(t, "exec sleep 60"), start(t, "trap '' TERM; while :; do sleep 0.1; done")
	if !obedient.Alive() || !stubborn.Alive() {
		t.Fatal("a process that was just started is not alive")
	}
	begin := time.Now()
	if err := obedient.Stop(t.Context(), 10*time.Second); err != nil || time.Since(begin) > 5*time.Second {
		t.Errorf("after %s: %v", time.Since(begin), err)
	}
	time.Sleep(100 * time.Millisecond) // for its trap
	if err := stubborn.Stop(t.Context(), 200*time.Millisecond); err != nil {
		t.Error(err)
	}
	for _, r := range []Record{obedient, stubborn} {
		if r.Alive() {
			t.Errorf("%d is alive", r.PID)
		}
		if err := r.Stop(t.Context(), time.Second); err != nil {
			t.Errorf("stopping twice: %v", err)
		}
	}
}

// A record of an earlier process must not reach the one that has its pid now.
func TestStrangersAreLeftAlone(t *testing.T) {
	r := start(t, "exec sleep 60")
	for _, stranger := range []Record{
		{Name: "other start", PID: r.PID, Start: r.Start - 1, Boot: r.Boot},
		{Name: "other boot", PID: r.PID, Start: r.Start, Boot: "x"},
		{Name: "none", PID: 0},
	} {
		if stranger.Alive() {
			t.Errorf("%s counts as alive", stranger.Name)
		}
		if err := stranger.Stop(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
	if !r.Alive() {
		t.Error("the process was killed by a stranger's record")
	}
}

func TestStartFails(t *testing.T) {
	_, err := Command{Name: "ghost", Path: "/does/not/exist", Log: filepath.Join(t.TempDir(), "log")}.Start()
	if err == nil || !strings.Contains(err.Error(), "start ghost") {
		t.Errorf("error %v", err)
	}
}

func TestLogAndEnvironment(t *testing.T) {
	log := filepath.Join(t.TempDir(), "sub", "log")
	r, err := Command{Name: "env", Path: "/usr/bin/env", Env: []string{"ONLY=this"}, Log: log}.Start()
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); r.Alive() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if b, err := os.ReadFile(log); err != nil || string(b) != "ONLY=this\n" {
		t.Errorf("log %q, error %v", b, err)
	}
}
