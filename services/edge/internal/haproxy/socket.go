package haproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// askTimeout bounds one command; a master that loads a large configuration does not answer meanwhile.
	askTimeout = 10 * time.Second
	// maxAnswer is far above show stat of ten thousand routes.
	maxAnswer = 256 << 20
)

// ask sends one command line to one of HAProxy's sockets and reads the answer to its end.
func (p *Plane) ask(ctx context.Context, socket, command string) (string, error) {
	if strings.ContainsAny(command, "\n\r;") {
		return "", errors.New("a command for HAProxy is one line")
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(p.dir, socket))
	if err != nil {
		return "", fmt.Errorf("reach HAProxy: %w", err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		return "", fmt.Errorf("ask HAProxy: %w", err)
	}
	if unix, ok := conn.(*net.UnixConn); ok {
		_ = unix.CloseWrite() // the master waits for more otherwise
	}
	answer, err := io.ReadAll(io.LimitReader(conn, maxAnswer+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("hear HAProxy: %w", errors.Join(err, ctx.Err()))
	case len(answer) > maxAnswer:
		return "", fmt.Errorf("hear HAProxy: more than %d bytes", maxAnswer)
	}
	return string(answer), nil
}

// words are what HAProxy said in its log after the offset: its alerts, without the process and the level. Where it has no alert
// it is all of it.
func (p *Plane) words(offset int64) string {
	f, err := os.Open(filepath.Join(p.dir, logFile))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return ""
	}
	raw, _ := io.ReadAll(io.LimitReader(f, 64<<10))
	alerts := alertsOf(string(raw))
	if len(alerts) == 0 {
		return strings.TrimSpace(string(raw))
	}
	return strings.Join(alerts, "\n")
}

// alertsOf are the lines of HAProxy's own alerts.
func alertsOf(output string) []string {
	var alerts []string
	for line := range strings.Lines(output) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "[ALERT]")
		if !ok {
			continue
		}
		if _, text, ok := strings.Cut(rest, ") : "); ok {
			rest = text
		}
		alerts = append(alerts, strings.TrimSpace(rest))
	}
	return alerts
}

func (p *Plane) logSize() int64 {
	info, err := os.Stat(filepath.Join(p.dir, logFile))
	if err != nil {
		return 0
	}
	return info.Size()
}
