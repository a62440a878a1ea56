package haproxy_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// edit is an operator with vi: it changes the file as it is, and leaves our version in it.
func (p *plane) edit(change func(string) string) string {
	p.t.Helper()
	path := filepath.Join(p.dir, "haproxy.cfg")
	text, err := os.ReadFile(path)
	if err != nil {
		p.t.Fatal(err)
	}
	changed := change(string(text))
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return changed
}

func TestAHandEditIsKept(t *testing.T) {
	p := run(t, shortDir(t), "")
	port, target := freePort(t), backend(t)
	good := front(p.raw().Data, port, target)
	p.succeed(good)
	seen := p.raw()

	// Between the GET and the POST of a client.
	mine := p.edit(func(text string) string { return text + "\n# theirs\nbackend theirs from d\n" })
	got := p.want(409, "POST", fmt.Sprintf("/configuration/raw?version=%d", seen.Version), good)
	message(t, got.body, 409)
	p.want(409, "DELETE", fmt.Sprintf("/configuration/backends/b?version=%d", seen.Version), "")
	p.want(409, "POST", fmt.Sprintf("/transactions?version=%d", seen.Version), "")
	now := p.raw()
	if now.Version <= seen.Version || now.Data != mine {
		t.Fatalf("%+v", now)
	}
	if got := p.want(200, "GET", "/configuration/backends/theirs", ""); !strings.Contains(got.body, "theirs") {
		t.Fatal(got.body)
	}
	p.succeed(now.Data + "backend ours from d\n")
	if now = p.raw(); !strings.Contains(now.Data, "# theirs") || !strings.Contains(now.Data, "backend ours") {
		t.Fatalf("%+v", now)
	}

	// Under an open transaction, and one more than a version later.
	tx := decode[struct{ ID string }](t, p.want(201, "POST", fmt.Sprintf("/transactions?version=%d", now.Version), "").body).ID
	p.edit(func(text string) string {
		return strings.Replace(text, "# _version=", "# _version=9", 1) + "backend more from d\n"
	})
	p.want(409, "PUT", "/transactions/"+tx, "")
	if later := p.raw(); later.Version < 90 || !strings.Contains(later.Data, "backend more") {
		t.Fatalf("%+v", later)
	}

	// A typed edit takes it along, and a version that is too large for a number is none.
	p.edit(func(text string) string {
		return "# _version=99999999999999999999999\n" + text + "backend again from d\n"
	})
	version := p.raw().Version
	edited := p.want(202, "POST", fmt.Sprintf("/configuration/backends?version=%d", version), `{"name":"typed","mode":"tcp","from":"d"}`)
	if end := p.reload(edited.header.Get("Reload-Id")); end.Status != "succeeded" {
		t.Fatalf("%+v", end)
	}
	for _, name := range []string{"theirs", "ours", "more", "again", "typed"} {
		p.want(200, "GET", "/configuration/backends/"+name, "")
	}
	serves(t, port)

	// While we do not run.
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	mine = p.edit(func(text string) string { return text + "backend meanwhile from d\n" })
	next := run(t, p.dir, "")
	if got := next.raw(); got.Version <= version+1 || got.Data != mine {
		t.Fatalf("%+v", got)
	}
	eventually(t, "it serves", func() bool { return reaches(port) })
}

func TestAHandEditThatHAProxyDoesNotTakeIsKeptAndReported(t *testing.T) {
	p := run(t, shortDir(t), "")
	port, target := freePort(t), backend(t)
	p.succeed(front(p.raw().Data, port, target))
	fine := p.raw().Data

	broken := p.edit(func(text string) string { return text + "    no such thing\n" })
	now := p.raw()
	if now.Data != broken {
		t.Fatalf("%+v", now)
	}
	got := p.want(400, "POST", fmt.Sprintf("/configuration/raw?version=%d", now.Version), now.Data+"backend ours from d\n")
	if says := message(t, got.body, 400); !strings.Contains(says, "haproxy.cfg:21]") || !strings.Contains(says, filepath.Join(p.dir, "haproxy.cfg")) {
		t.Fatal(says)
	}
	p.want(400, "POST", fmt.Sprintf("/configuration/backends?version=%d", now.Version), `{"name":"typed","mode":"tcp","from":"d"}`)
	if after := p.raw(); after != now {
		t.Fatalf("%+v", after)
	}
	serves(t, port)

	// HAProxy goes on with what it had, also after it was killed: the broken file stays as it is.
	for _, pid := range processes(t, p.dir) {
		kill(t, pid)
	}
	eventually(t, "it serves again", func() bool { return reaches(port) })
	if after := p.raw(); after != now {
		t.Fatalf("%+v", after)
	}
	p.succeed(strings.SplitN(fine, "\n", 2)[1] + "backend mended from d\n")
	serves(t, port)
	for _, pid := range processes(t, p.dir) {
		kill(t, pid)
	}
	eventually(t, "it serves again", func() bool { return reaches(port) })
	if got := p.raw(); !strings.Contains(got.Data, "backend mended") {
		t.Fatalf("%+v", got)
	}

	// A clash that the operator has written is not ours to take back.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	p.edit(func(text string) string {
		return strings.Replace(text, fmt.Sprintf("bind 127.0.0.1:%d", port), "bind "+taken.Addr().String(), 1)
	})
	theirs := p.raw()
	if end := p.post(theirs.Data + "backend ours from d\n"); end.Status != "failed" || !strings.Contains(end.Response, "Address already in use") {
		t.Fatalf("%+v", end)
	}
	after := p.raw()
	if strings.SplitN(after.Data, "\n", 2)[1] != strings.SplitN(theirs.Data, "\n", 2)[1] || after.Version <= theirs.Version {
		t.Fatalf("%+v", after)
	}
	serves(t, port)
}

func TestALostFileIsWrittenAgain(t *testing.T) {
	p := run(t, shortDir(t), "")
	p.succeed(front(p.raw().Data, freePort(t), backend(t)))
	was := p.raw()
	if err := os.Remove(filepath.Join(p.dir, "haproxy.cfg")); err != nil {
		t.Fatal(err)
	}
	if got := p.raw(); got != was {
		t.Fatalf("%+v", got)
	}
}

// An editor that saves while HAProxy checks what a client wants to write.
func TestASaveDuringACheckIsKept(t *testing.T) {
	program, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	wrapper := filepath.Join(dir, "wrapper")
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" != -c ] || echo '# saved' >>%s/haproxy.cfg\nexec %s \"$@\"\n", dir, program)
	if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	p := run(t, dir, wrapper)
	base := p.raw()
	p.want(409, "POST", "/configuration/raw?version=1", front(base.Data, freePort(t), backend(t)))
	if got := p.raw(); got.Version != 2 || got.Data != base.Data+"# saved\n" {
		t.Fatalf("%+v", got)
	}
}

// Everything that somebody saves stays, however often clients write at the same time.
func TestSavesUnderWritesAreKept(t *testing.T) {
	p := run(t, shortDir(t), "")
	p.raw()
	path := filepath.Join(p.dir, "haproxy.cfg")
	stop, saved := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 0
		defer func() { saved <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Error(err)
				return
			}
			temporary := path + "~"
			err = os.WriteFile(temporary, append(text, fmt.Sprintf("# saved %d.\n", n)...), 0o600)
			if err == nil {
				err = os.Rename(temporary, path)
			}
			if err != nil {
				t.Error(err)
				return
			}
			n++
			time.Sleep(time.Duration(n%11) * 15 * time.Millisecond)
		}
	}()
	written := 0
	for i := 0; written < 5 && i < 100; i++ {
		now := p.raw()
		got := p.call("POST", fmt.Sprintf("%s/configuration/raw?skip_reload=true&version=%d", services, now.Version), "text/plain", now.Data+fmt.Sprintf("# ours %d.\n", i))
		switch got.status {
		case 201:
			written++
		case 409:
		default:
			t.Fatalf("%+v", got)
		}
	}
	close(stop)
	n := <-saved
	text := p.raw().Data
	for i := range n {
		if !strings.Contains(text, fmt.Sprintf("# saved %d.\n", i)) {
			t.Fatalf("save %d of %d is lost", i, n)
		}
	}
	if n == 0 {
		t.Fatal("nothing was saved")
	}
}
