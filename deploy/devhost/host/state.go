package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubebyon/kubebyon/deploy/devhost/process"
)

// runState is what a later command must know to find and end this run; it is written before each step that makes
// something outside the state folder.
type runState struct {
	Processes []process.Record `json:"processes"` // in order of their start
	Spaces    process.Spaces   `json:"spaces"`    // of the machine
	Cgroups   []string         `json:"cgroups"`
	External  string           `json:"external,omitempty"` // the kubeconfig of someone else's cluster, which is used instead
}

func (h *Host) statePath() string { return filepath.Join(h.Layout.State, "devhost.json") }

func (h *Host) save() error {
	b, err := json.MarshalIndent(h.state, "", "  ")
	if err != nil {
		return err
	}
	next := h.statePath() + ".next"
	if err := os.WriteFile(next, b, 0o600); err != nil {
		return err
	}
	return os.Rename(next, h.statePath())
}

// load reads the state of the last run; none is an empty one.
func (h *Host) load() error {
	h.state = runState{}
	b, err := os.ReadFile(h.statePath())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &h.state); err != nil {
		return fmt.Errorf("%s is damaged (%w): stop what it started by hand, then remove it", h.statePath(), err)
	}
	return nil
}

// lock serialises up and down over one state folder, until the returned function is called.
func (h *Host) lock() (unlock func(), err error) {
	if err := os.MkdirAll(h.Layout.State, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(h.Layout.State, "devhost.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another up or down is at work on %s: wait for it", h.Layout.State)
	}
	return func() { _ = f.Close() }, nil
}

// claim takes the machine-wide network for this state folder, or says whose it is.
func (h *Host) claim() error {
	path := h.Layout.Net.Owner()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if owner := strings.TrimSpace(string(b)); owner != "" && owner != h.Layout.State {
		other := &Host{Layout: h.Layout}
		other.Layout.State = owner
		if err := other.load(); err == nil && other.running() {
			return fmt.Errorf("the development host of %s is running on %s: use it (KUBECONFIG=%s), stop it (KUBEBYON_STATE=%s), or set KUBEBYON_DEVHOST_NETWORK=198.18.X.0/24",
				owner, h.Layout.Net.Prefix(), other.Layout.Kubeconfig(), owner)
		}
	}
	return os.WriteFile(path, []byte(h.Layout.State+"\n"), 0o644)
}

func (h *Host) unclaim() error {
	b, err := os.ReadFile(h.Layout.Net.Owner())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil || strings.TrimSpace(string(b)) != h.Layout.State {
		return err
	}
	return os.Remove(h.Layout.Net.Owner())
}

// running reports whether any process of the run is alive.
func (h *Host) running() bool {
	for _, r := range h.state.Processes {
		if r.Alive() {
			return true
		}
	}
	return false
}

// whole reports whether all of them are.
func (h *Host) whole() bool {
	for _, r := range h.state.Processes {
		if !r.Alive() {
			return false
		}
	}
	return len(h.state.Processes) > 0
}
