package haproxy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReplaceKeepsWhatWasSavedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	f := file{path: filepath.Join(dir, "haproxy.cfg"), state: filepath.Join(dir, "state")}
	if _, err := f.open("global\n"); err != nil {
		t.Fatal(err)
	}
	if done, err := f.replace("global # ours\n", 2, ""); err != nil || !done {
		t.Fatalf("%v %v", done, err)
	}
	if err := os.WriteFile(f.path, []byte("theirs\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if done, err := f.replace("global # again\n", 3, ""); err != nil || done {
		t.Fatalf("%v %v", done, err)
	}
	if text, err := os.ReadFile(f.path); err != nil || string(text) != "theirs\n" {
		t.Fatalf("%q %v", text, err)
	}
	if changed, err := f.sync(""); err != nil || !changed || f.version != 3 || f.text != "theirs\n" {
		t.Fatalf("%v %v %+v", changed, err, f)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.next")); len(left) != 0 {
		t.Fatalf("%v", left)
	}
}

const procsOf26 = `#<PID>          <type>          <reloads>       <uptime>        <version>      
2970            master          2 [failed: 1]   0d00h00m04s     2.6.12-1+deb12u4
# workers
2985            worker          1               0d00h00m03s     2.6.12-1+deb12u4
# old workers
2973            worker          2               1d02h03m04s     2.6.12-1+deb12u4
# programs

`

func TestParseProcs(t *testing.T) {
	got, err := parseProcs(procsOf26)
	if err != nil {
		t.Fatal(err)
	}
	if got.master != (process{pid: 2970, reloads: 2, failed: 1}) || len(got.workers) != 2 || got.workers[0].old || !got.workers[1].old ||
		got.workers[1].pid != 2973 || got.workers[1].uptime.String() != "26h3m4s" {
		t.Fatalf("%+v", got)
	}
	for _, bad := range []string{"", "Unknown command: 'show proc'", "1 master 0 [failed: 0]", "x master 0", "12 master y", "12 master 0 [failed: z]", "12 worker 0 0d"} {
		if got, err := parseProcs(bad); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func FuzzParseProcs(f *testing.F) {
	f.Add(procsOf26)
	f.Add("12 master 0 [failed: 0] 99999999999d0s\n# old workers\n13 worker 0 0d-1s")
	f.Fuzz(func(t *testing.T, answer string) {
		got, err := parseProcs(answer)
		if err != nil {
			return
		}
		// What we send signals to is never everybody, init or a group.
		if got.master.pid <= 1 || got.master.failed < 0 {
			t.Fatalf("%+v", got)
		}
		for _, w := range got.workers {
			if w.pid <= 1 || w.uptime < 0 {
				t.Fatalf("%+v", w)
			}
		}
	})
}

func FuzzStats(f *testing.F) {
	f.Add("# pxname,svname,qcur,type,status,\nb,BACKEND,1,1,UP,\nb,n1,,2,\"a, \"\"b\"\"\",\n")
	f.Add("# pxname,svname,type\n\"\n")
	c := newColumns()
	f.Fuzz(func(t *testing.T, answer string) {
		got, err := c.stats(answer)
		if err != nil {
			return
		}
		for _, one := range got {
			if one.Stats == nil || one.Type == "" || (one.Type == "server") != (one.BackendName != "" || one.Type == "server") {
				t.Fatalf("%+v", one)
			}
		}
	})
}

func FuzzInfo(f *testing.F) {
	f.Add("1.Version.1:POS:str:2.6.12-1+deb12u4\n2.Release_date.1:POS:str:2026/10/17\n6.Pid.1:MGP:u32:2985\n")
	c := newColumns()
	f.Fuzz(func(t *testing.T, answer string) {
		if got, err := c.info(answer); err == nil && (got.Pid == nil || got.Version == "") {
			t.Fatalf("%+v", got)
		}
	})
}

// FuzzVersion holds what happens to a configuration that comes from outside: its version is replaced, the rest is kept, and it
// counts as the same configuration.
func FuzzVersion(f *testing.F) {
	f.Add("# _version=41\n# _md5hash=abc\n# by hand\n\nglobal\n", int64(7))
	f.Add("# _version=\r\n\r\n#\t\nglobal\n# _version=3\n", int64(1))
	f.Add("\x00# _version=1", int64(2))
	f.Fuzz(func(t *testing.T, text string, version int64) {
		if version < 1 || version >= 1<<62 {
			return
		}
		stored := withVersion(text, version)
		if got := versionOf(stored); got != version {
			t.Fatalf("version %d of %q", got, stored)
		}
		if digest(stored) != digest(text) || withVersion(stored, version) != stored {
			t.Fatalf("%q is not the same as %q", stored, text)
		}
		rest := withoutVersion(text)
		if !strings.HasSuffix(stored, rest) || len(stored) != len(rest)+len(versionPrefix)+len(strings.TrimLeft(strings.SplitN(stored, "\n", 2)[0], "# _version="))+1 {
			t.Fatalf("%q", stored)
		}
		if v := versionOf(text); v < 1 {
			t.Fatalf("version %d", v)
		}
		listens(text)
		alertsOf(text)
	})
}
