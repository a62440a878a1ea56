package dataplane

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
)

// inBothModes runs a HAProxy with two routes by rules, and one by a map.
func inBothModes(t *testing.T, s Settings, test func(t *testing.T, addr string)) {
	t.Helper()
	a, b := serve(t, "a", false), serve(t, "b", false)
	routes := []edge.Route{routeTo("a", "a.example.com", a.AddrPort), routeTo("b", "b.example.com", b.AddrPort)}
	for mode, above := range map[string]int{modeRules: 10, modeMap: -1} {
		t.Run(mode, func(t *testing.T) {
			addr := freePort(t).String()
			s.Bind, s.MapAbove = []string{addr}, above
			text := textOf(t, s, routes)
			if strings.Contains(text, "map_str(") != (mode == modeMap) {
				t.Fatalf("this is not the mode %s:\n%s", mode, text)
			}
			runHAProxy(t, text, addr)
			test(t, addr)
		})
	}
}

func TestNamesLeadWhereTheyShould(t *testing.T) {
	t.Parallel()
	inBothModes(t, Settings{}, func(t *testing.T, addr string) {
		t.Helper()
		for sni, name := range map[string]string{
			"a.example.com": "a", "b.example.com": "b",
			"A.Example.COM": "a", // names know no case
			"c.example.com": "", "example.com": "", "x.a.example.com": "", "a.example.com.evil.org": "", "xa.example.com": "",
		} {
			if got := answeredBy(t, addr, sni); got != name {
				t.Errorf("%s leads to %q, want %q", sni, got, name)
			}
		}
	})
}

// TestWhatIsNoNameOfOursIsRejectedAtOnce: not when the time to wait for a hello is over.
func TestWhatIsNoNameOfOursIsRejectedAtOnce(t *testing.T) {
	t.Parallel()
	hello := helloOf(t, "a.example.com")
	name := []byte("a.example.com")
	with := func(sni string) []byte { return bytes.Replace(hello, name, []byte(sni), 1) }
	cases := map[string][]byte{
		"http":           []byte("GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n"),
		"ssh":            []byte("SSH-2.0-OpenSSH_9.2\r\n"),
		"one byte":       {'G'},
		"zeroes":         make([]byte, 64),
		"no SNI":         helloOf(t, ""),
		"an IP address":  with("198.51.100.77"),
		"a trailing dot": with("a.exampl.com."), // as long as the name; the dot alone is what matters below
		"unknown":        with("c.example.com"),
		"a wildcard":     with("*.example.com"),
		"a NUL":          with("a.example\x00com"),
		"a blank":        with("a.example com"),
		"a server hello": append([]byte{22, 3, 3, 0, 42, 2, 0, 0, 38, 3, 3}, make([]byte, 36)...),
		"an alert":       {21, 3, 3, 0, 2, 2, 40},
	}
	inBothModes(t, Settings{}, func(t *testing.T, addr string) {
		t.Helper()
		for what, bytes := range cases {
			if err := closedAtOnce(addr, bytes); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		// The dot at the end of a name that is one of ours.
		if err := closedAtOnce(addr, dotted(hello, name)); err != nil {
			t.Errorf("a.example.com. with its dot: %v", err)
		}
		if got := answeredBy(t, addr, "a.example.com"); got != "a" {
			t.Errorf("afterwards a.example.com leads to %q", got)
		}
	})
}

// dotted makes the name in a hello one byte longer, with all the lengths around it.
func dotted(hello, name []byte) []byte {
	at := bytes.Index(hello, name)
	out := append(append(bytes.Clone(hello[:at+len(name)]), '.'), hello[at+len(name):]...)
	more := func(i int) { // of two bytes
		n := int(out[i])<<8 | int(out[i+1])
		out[i], out[i+1] = byte((n+1)>>8), byte(n+1)
	}
	more(at - 2) // the name
	more(at - 5) // the list of names
	more(at - 7) // the extension
	more(7)      // the handshake message, of three bytes
	more(3)      // the record
	i := 5 + 4 + 2 + 32
	i += 1 + int(out[i])                    // the session
	i += 2 + int(out[i])<<8 + int(out[i+1]) // the suites
	i += 1 + int(out[i])                    // the compressions
	more(i)                                 // the extensions
	return out
}

// closedAtOnce sends bytes and holds that the connection ends well before the five seconds that a hello may take.
func closedAtOnce(addr string, send []byte) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	begun := time.Now()
	if _, err := conn.Write(send); err != nil {
		return err
	}
	conn.SetReadDeadline(begun.Add(patience))
	n, err := conn.Read(make([]byte, 1))
	took := time.Since(begun)
	switch {
	case n > 0:
		return errors.New("it was answered")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("it was left open")
	case took > 4*time.Second:
		return fmt.Errorf("it took %s", took)
	}
	return nil
}

// helloOf is what a client with post-quantum key exchange begins with; it is longer than one segment on most networks.
func helloOf(tb testing.TB, sni string) []byte {
	tb.Helper()
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		conn := tls.Client(there, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
		conn.SetDeadline(time.Now().Add(patience))
		conn.Handshake()
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(here, head); err != nil {
		tb.Fatal(err)
	}
	rest := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(here, rest); err != nil {
		tb.Fatal(err)
	}
	hello := slices.Concat(head, rest)
	if len(hello) < 1300 {
		tb.Fatalf("a hello of %d bytes is not post-quantum", len(hello))
	}
	return hello
}

// splitter sends the first thing that it is given in pieces.
type splitter struct {
	net.Conn
	cuts  []int
	pause time.Duration
	done  bool
}

func (s *splitter) Write(b []byte) (int, error) {
	if s.done {
		return s.Conn.Write(b)
	}
	s.done = true
	sent := 0
	for _, cut := range append(s.cuts, len(b)) {
		if cut <= sent || cut > len(b) {
			continue
		}
		if sent > 0 {
			time.Sleep(s.pause)
		}
		n, err := s.Conn.Write(b[sent:cut])
		sent += n
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

func TestAHelloInManySegmentsIsRouted(t *testing.T) {
	t.Parallel()
	hello := helloOf(t, "b.example.com")
	sni := bytes.Index(hello, []byte("b.example.com"))
	every := func(n int) (cuts []int) {
		for i := n; i < len(hello); i += n {
			cuts = append(cuts, i)
		}
		return cuts
	}
	ways := []struct {
		name  string
		cuts  []int
		pause time.Duration
	}{
		{"whole", nil, 0},
		{"after one byte", []int{1}, 50 * time.Millisecond},
		{"inside the record's header", []int{3}, 50 * time.Millisecond},
		{"after the record's header", []int{5}, 50 * time.Millisecond},
		{"after the message's type", []int{6}, 50 * time.Millisecond},
		{"after the random", []int{43}, 50 * time.Millisecond},
		{"before the name", []int{sni}, 50 * time.Millisecond},
		{"inside the name", []int{sni + 4}, 50 * time.Millisecond},
		{"after the name", []int{sni + 13}, 50 * time.Millisecond},
		{"before the last byte", []int{len(hello) - 1}, 50 * time.Millisecond},
		{"in small segments", every(100), 10 * time.Millisecond},
		{"byte by byte", every(1), 0},
		{"slowly, over two seconds", every(len(hello)/4 + 1), 500 * time.Millisecond},
	}
	inBothModes(t, Settings{}, func(t *testing.T, addr string) {
		t.Helper()
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				t.Parallel()
				conn, name, err := open(addr, "b.example.com", func(c net.Conn) net.Conn {
					return &splitter{Conn: c, cuts: way.cuts, pause: way.pause}
				})
				if err != nil || name != "b" {
					t.Fatalf("leads to %q: %v", name, err)
				}
				conn.Close()
			})
		}
	})
}

// TestAClientThatSaysNothingIsLetGo: after the time for a hello, not the 75 s of a connection.
func TestAClientThatSaysNothingIsLetGo(t *testing.T) {
	t.Parallel()
	hello := helloOf(t, "a.example.com")
	inBothModes(t, Settings{}, func(t *testing.T, addr string) {
		t.Helper()
		for name, part := range map[string][]byte{"nothing": nil, "half a hello": hello[:len(hello)/2]} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				conn, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				conn.Write(part)
				conn.SetReadDeadline(time.Now().Add(40 * time.Second))
				if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("it was left open: %v", err)
				}
			})
		}
	})
}

// TestOneRouteCannotTakeEverything: too many connections of one name are rejected, and the other names work.
func TestOneRouteCannotTakeEverything(t *testing.T) {
	t.Parallel()
	inBothModes(t, Settings{NameConns: 3, NameRate: -1}, func(t *testing.T, addr string) {
		t.Helper()
		for i := range 3 {
			conn, name, err := open(addr, "a.example.com", nil)
			if err != nil || name != "a" {
				t.Fatalf("connection %d: %q, %v", i, name, err)
			}
			defer conn.Close()
		}
		if conn, _, err := open(addr, "a.example.com", nil); err == nil {
			conn.Close()
			t.Fatal("a fourth connection was let in")
		}
		if got := answeredBy(t, addr, "b.example.com"); got != "b" {
			t.Fatalf("the other name leads to %q", got)
		}
	})
}

// TestOneSourceCannotTakeEverything: only the loopback may, which the test has to make smaller for that.
func TestOneSourceCannotTakeEverything(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]Settings{"open ones": {SourceConns: 3, SourceRate: -1}, "new ones": {SourceConns: -1, SourceRate: 3}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := serve(t, "a", false)
			addr := freePort(t)
			s.Bind = []string{":" + strconv.Itoa(int(addr.Port()))}
			text := textOf(t, s, []edge.Route{routeTo("a", "a.example.com", a.AddrPort)})
			text = strings.Replace(text, "src 127.0.0.0/8 ", "src 127.0.0.9 127.0.0.1 ", 1)
			runHAProxy(t, text, addr.String())
			from := func(source string) (net.Conn, error) {
				raw, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}).Dial("tcp", addr.String())
				if err != nil {
					return nil, err
				}
				conn := tls.Client(raw, &tls.Config{ServerName: "a.example.com", InsecureSkipVerify: true})
				conn.SetDeadline(time.Now().Add(patience))
				if err := conn.Handshake(); err != nil {
					raw.Close()
					return nil, err
				}
				return conn, nil
			}
			for i := range 3 {
				conn, err := from("127.0.0.2")
				if err != nil {
					t.Fatalf("connection %d: %v", i, err)
				}
				defer conn.Close()
			}
			if conn, err := from("127.0.0.2"); err == nil {
				conn.Close()
				t.Error("a fourth connection was let in")
			}
			for source, times := range map[string]int{"127.0.0.3": 1, "127.0.0.9": 6} {
				for range times {
					conn, err := from(source)
					if err != nil {
						t.Fatalf("from %s: %v", source, err)
					}
					defer conn.Close()
				}
			}
		})
	}
}
