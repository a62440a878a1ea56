package haproxy_test

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/haproxytech/client-native/v5/models"
)

// message is the text of an error's body; its code must be code.
func message(t *testing.T, body string, code int64) string {
	t.Helper()
	e := decode[models.Error](t, body)
	if e.Code == nil || e.Message == nil || *e.Code != code {
		t.Fatalf("no error %d: %s", code, body)
	}
	return *e.Message
}

func TestRawRefusesAsTheDataPlaneAPIDoes(t *testing.T) {
	p := run(t, shortDir(t), "")
	base := p.raw()
	good := front(base.Data, freePort(t), backend(t))
	for _, c := range []struct {
		query, body string
		status      int
		code        int64
		says        string
	}{
		{"?version=99", good, 409, 409, "version mismatch: version in configuration file is 1, given version is 99"},
		{"", good, 400, 400, "version or transaction not specified: version or transaction not specified, specify only one"},
		{"?version=x", good, 422, 601, `version in query must be of type int64: "x"`},
		{"?version=1", "global", 400, 400, "invalid configuration: no newline character found"},
		{"?version=1", "", 422, 602, "data in body is required"},
		{"?version=1&skip_reload=perhaps", good, 422, 601, `skip_reload in query must be of type bool: "perhaps"`},
		{"?version=1", strings.Replace(good, "default_backend b", "foo bar", 1), 400, 400, "unknown keyword 'foo' in 'frontend' section"},
		{"?version=1", strings.Replace(good, "default_backend b", "default_backend none", 1), 400, 400, "unable to find required default_backend: 'none'"},
		{"?version=1", good + "\x00\x01\xff\n", 400, 400, "validation error: exit status 1:"},
		{"?version=1", strings.Repeat("x", 40<<20) + "\n", 413, 413, "http: request body too large"},
	} {
		got := p.want(c.status, "POST", "/configuration/raw"+c.query, c.body)
		if says := message(t, got.body, c.code); !strings.Contains(says, c.says) || strings.Contains(says, "candidate") {
			t.Errorf("%s: %s", c.query, says)
		}
	}
	if got := p.call("POST", services+"/configuration/raw?version=1", "application/json", good); got.status != 415 {
		t.Errorf("%+v", got)
	}
	if got := p.want(405, "PUT", "/configuration/raw", ""); got.header.Get("Allow") != "GET,POST" || message(t, got.body, 405) != "method PUT is not allowed, but [GET,POST] are" {
		t.Errorf("%+v", got)
	}
	p.want(404, "GET", "/configuration/nothing", "")
	if after := p.raw(); after != base {
		t.Errorf("a refused one left %+v", after)
	}
	if left, _ := filepath.Glob(filepath.Join(p.dir, "*candidate*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}

	p.want(202, "POST", "/configuration/raw?only_validate=true", good)
	if after := p.raw(); after != base {
		t.Errorf("validation left %+v", after)
	}
	got := p.want(201, "POST", "/configuration/raw?version=1&skip_reload=true", good)
	if got.header.Get("Reload-Id") != "" || got.header.Get("Configuration-Version") != "2" || decode[string](t, got.body) != p.raw().Data {
		t.Errorf("%+v", got)
	}
	p.want(201, "POST", "/configuration/raw?version=2&force_reload=true", good)
	got = p.want(202, "POST", "/configuration/raw?skip_version=true", good)
	if len(got.header.Get("Configuration-Checksum")) != 32 {
		t.Errorf("%+v", got)
	}
	if id := got.header.Get("Reload-Id"); p.reload(id).ID != id {
		t.Errorf("%+v", got)
	}
	p.want(422, "GET", "/reloads/nope", "")
	p.want(404, "GET", "/reloads/2001-01-01-999", "")
	if all := decode[[]ended](t, p.want(200, "GET", "/reloads", "").body); len(all) < 2 {
		t.Errorf("%+v", all)
	}
}

func TestTheRawTextIsKept(t *testing.T) {
	p := run(t, shortDir(t), "")
	odd := "# by hand\n\n" + strings.Replace(front(p.raw().Data, freePort(t), backend(t)), "# _version=1\n", "", 1) +
		"\n\t# _version=7 in a comment\n#-----\nbackend  zz  from  d\n\t  server   a\t127.0.0.1:1   weight 3\n\n\nbackend aa from d\n"
	p.succeed("# _version=41\n# _md5hash=abc\n" + odd)
	if got := p.raw(); got.Data != "# _version=2\n"+odd {
		t.Fatalf("%q\nis not\n%q", got.Data, odd)
	}
}

func TestTypedEdits(t *testing.T) {
	p := run(t, shortDir(t), "")
	port, target := freePort(t), backend(t)
	p.succeed(front(p.raw().Data, port, target))
	version := func() int64 { t.Helper(); return p.raw().Version }

	message(t, p.want(409, "POST", "/transactions?version=1", "").body, 409)
	message(t, p.want(422, "POST", "/transactions", "").body, 602)
	tx := decode[models.Transaction](t, p.want(201, "POST", fmt.Sprintf("/transactions?version=%d", version()), "").body)
	if tx.Status != "in_progress" || tx.Version != version() || tx.ID == "" {
		t.Fatalf("%+v", tx)
	}
	other := decode[models.Transaction](t, p.want(201, "POST", fmt.Sprintf("/transactions?version=%d", version()), "").body)
	in := "transaction_id=" + tx.ID
	for _, c := range []struct {
		status       int
		method, path string
		body         string
		says         string
	}{
		{200, "GET", "/transactions/" + tx.ID, "", tx.ID},
		{404, "GET", "/transactions/none", "", "transaction does not exist: transaction none does not exist"},
		{404, "PUT", "/transactions/none", "", "does not exist"},
		{404, "DELETE", "/transactions/none", "", "does not exist"},
		{202, "POST", "/configuration/backends?" + in, `{"name":"x1","mode":"tcp","from":"d"}`, `"name":"x1"`},
		{409, "POST", "/configuration/backends?" + in, `{"name":"x1","mode":"tcp","from":"d"}`, "object already exists: backend x1 already exists"},
		{400, "POST", "/configuration/backends?transaction_id=zzz", `{"name":"x1"}`, "transaction does not exist: zzz"},
		{400, "POST", "/configuration/backends?version=2&" + in, `{"name":"x1"}`, "both version and transaction specified, specify only one"},
		{400, "POST", "/configuration/backends?force_reload=true&" + in, `{"name":"x1"}`, "Both force_reload and transaction specified, specify only one"},
		{400, "POST", "/configuration/backends", `{"name":"x1"}`, "version or transaction not specified"},
		{422, "POST", "/configuration/backends?" + in, `{"name":"x2","mode":"bogus"}`, "mode in body should be one of [http tcp log]"},
		{422, "POST", "/configuration/backends?" + in, `{"mode":"tcp"}`, "name in body is required"},
		{400, "POST", "/configuration/backends?" + in, `{bad`, "parsing data body"},
		{422, "POST", "/configuration/backends?" + in, ``, "data in body is required"},
		{202, "POST", "/configuration/servers?backend=x1&" + in, `{"name":"n1","address":"127.0.0.1","port":99}`, `"port":99`},
		{500, "POST", "/configuration/servers?" + in, `{"name":"n1","address":"127.0.0.1","port":99}`, "parentType empty"},
		{400, "POST", "/configuration/servers?backend=nope&" + in, `{"name":"n1","address":"127.0.0.1","port":99}`, "missing parent: backend nope does not exist"},
		{422, "POST", "/configuration/servers?backend=x1&" + in, `{"name":"n2","address":"127.0.0.1","port":999999}`, "port in body should be less than or equal to 65535"},
		{200, "GET", "/configuration/servers?backend=x1&" + in, "", `"data":[{`},
		{200, "GET", "/configuration/servers?backend=x1", "", `"data":[]`},
		{404, "GET", "/configuration/servers/n9?backend=b", "", "missing object: server n9 does not exist"},
		{200, "GET", "/configuration/servers/n1?backend=b", "", `"name":"n1"`},
		{404, "GET", "/configuration/backends/x1", "", "missing object"},
		{200, "GET", "/configuration/backends/x1?" + in, "", `"from":"d"`},
		{200, "GET", "/configuration/backends", "", `"data":[{`},
		{202, "POST", "/configuration/backend_switching_rules?frontend=f&" + in, `{"index":0,"name":"x1","cond":"if","cond_test":"{ req.ssl_sni -i a.b }"}`, `"index":0`},
		{400, "POST", "/configuration/backend_switching_rules?frontend=f&" + in, `{"index":7,"name":"x1"}`, "index out of range"},
		{400, "POST", "/configuration/backend_switching_rules?frontend=nof&" + in, `{"index":0,"name":"x1"}`, "missing parent"},
		{422, "POST", "/configuration/backend_switching_rules?" + in, `{"index":0,"name":"x1"}`, "frontend in query is required"},
		{200, "GET", "/configuration/backend_switching_rules?frontend=f&" + in, "", "req.ssl_sni -i a.b"},
		{200, "GET", "/configuration/backend_switching_rules?frontend=nof", "", `"data":[]`},
		{200, "GET", "/configuration/backend_switching_rules/0?frontend=f&" + in, "", `"name":"x1"`},
		{404, "GET", "/configuration/backend_switching_rules/5?frontend=f", "", "missing object"},
		{200, "GET", "/configuration/raw?" + in, "", "backend x1"},
		{200, "GET", "/configuration/version?" + in, "", fmt.Sprint(tx.Version)},
	} {
		if got := p.want(c.status, c.method, c.path, c.body); !strings.Contains(got.body, c.says) {
			t.Errorf("%s %s: %s", c.method, c.path, got.body)
		}
	}
	if strings.Contains(p.raw().Data, "backend x1") {
		t.Fatal("an open transaction shows")
	}
	done := p.want(202, "PUT", "/transactions/"+tx.ID, "")
	if got := decode[models.Transaction](t, done.body); got.Status != "success" || got.Version != tx.Version {
		t.Fatalf("%+v", got)
	}
	if got := p.reload(done.header.Get("Reload-Id")); got.Status != "succeeded" {
		t.Fatalf("%+v", got)
	}
	if !strings.Contains(p.raw().Data, "use_backend x1 if { req.ssl_sni -i a.b }") {
		t.Fatal(p.raw().Data)
	}
	p.want(404, "PUT", "/transactions/"+tx.ID, "")
	if got := p.want(406, "PUT", "/transactions/"+other.ID, ""); message(t, got.body, 406) != "transaction "+other.ID+" is outdated and cannot be committed" {
		t.Fatal(got.body)
	}
	p.want(204, "DELETE", "/transactions/"+other.ID, "")

	// One that somebody else has overtaken, and one that HAProxy does not accept.
	late := decode[models.Transaction](t, p.want(201, "POST", fmt.Sprintf("/transactions?version=%d", version()), "").body)
	p.succeed(p.raw().Data)
	p.want(409, "PUT", "/transactions/"+late.ID, "")
	p.want(406, "PUT", "/transactions/"+late.ID, "")
	bad := decode[models.Transaction](t, p.want(201, "POST", fmt.Sprintf("/transactions?version=%d", version()), "").body)
	p.want(202, "DELETE", "/configuration/backends/b?transaction_id="+bad.ID, "")
	was := p.raw()
	if got := p.want(400, "PUT", "/transactions/"+bad.ID, ""); !strings.Contains(message(t, got.body, 400), "unable to find required default_backend: 'b'") {
		t.Fatal(got.body)
	}
	if got := decode[models.Transaction](t, p.want(200, "GET", "/transactions/"+bad.ID, "").body); got.Status != "failed" || p.raw() != was {
		t.Fatalf("%+v", got)
	}
	if all := decode[models.Transactions](t, p.want(200, "GET", "/transactions?status=failed", "").body); len(all) != 1 {
		t.Fatalf("%+v", all)
	}

	// By version, each a change of its own.
	edit := func(status int, method, path, body string) response {
		t.Helper()
		return p.want(status, method, fmt.Sprintf("%s&version=%d", path, version()), body)
	}
	edit(404, "PUT", "/configuration/servers/n9?backend=x1", `{"name":"n9","address":"127.0.0.1","port":1}`)
	checked := edit(202, "PUT", "/configuration/servers/n1?backend=x1", `{"name":"n1","address":"127.0.0.1","port":100,"check":"enabled"}`)
	p.reload(checked.header.Get("Reload-Id"))
	edit(404, "DELETE", "/configuration/backend_switching_rules/9?frontend=f", "")
	edit(202, "DELETE", "/configuration/backend_switching_rules/0?frontend=f", "")
	edit(404, "DELETE", "/configuration/servers/n9?backend=x1", "")
	edit(202, "DELETE", "/configuration/servers/n1?backend=x1", "")
	edit(404, "DELETE", "/configuration/backends/x9?a=b", "")
	p.want(409, "DELETE", "/configuration/backends/x1?version=1", "")
	edit(400, "DELETE", "/configuration/backends/b?a=b", "")
	edit(204, "DELETE", "/configuration/backends/x1?force_reload=true", "")
	edit(201, "POST", "/configuration/backends?force_reload=true", `{"name":"x3","mode":"tcp","from":"d"}`)
	serves(t, port)

	for range 20 {
		p.want(201, "POST", fmt.Sprintf("/transactions?version=%d", version()), "")
	}
	if got := p.want(429, "POST", fmt.Sprintf("/transactions?version=%d", version()), ""); !strings.Contains(message(t, got.body, 429), "maximum amount of 20") {
		t.Fatal(got.body)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(p.dir, ".*")); len(left) != 0 {
		t.Fatalf("left: %v", left)
	}
}

func TestAServersAddressChangesWithoutAReload(t *testing.T) {
	p := run(t, shortDir(t), "")
	port := freePort(t)
	p.succeed(front(p.raw().Data, port, "127.0.0.1:1"))
	reloads := len(decode[[]ended](t, p.want(200, "GET", "/reloads", "").body))
	host, number, _ := strings.Cut(backend(t), ":")
	got := p.want(200, "PUT", fmt.Sprintf("/configuration/servers/n1?backend=b&version=%d", p.raw().Version),
		fmt.Sprintf(`{"name":"n1","address":%q,"port":%s}`, host, number))
	if got.header.Get("Reload-Id") != "" || !strings.Contains(got.body, number) {
		t.Fatalf("%+v", got)
	}
	serves(t, port)
	if !strings.Contains(p.raw().Data, "server n1 127.0.0.1:"+number) {
		t.Fatal(p.raw().Data)
	}
	p.want(200, "PUT", fmt.Sprintf("/configuration/servers/n1?backend=b&version=%d", p.raw().Version),
		fmt.Sprintf(`{"name":"n1","address":%q,"port":%s}`, host, number))
	if now := len(decode[[]ended](t, p.want(200, "GET", "/reloads", "").body)); now != reloads {
		t.Fatalf("%d reloads, %d before", now, reloads)
	}
	p.succeed(p.raw().Data)
	serves(t, port)
}

func TestWhatHAProxyCounts(t *testing.T) {
	p := run(t, shortDir(t), "")
	for _, path := range []string{"/runtime/info", "/stats/native?type=backend"} {
		if got := p.want(200, "GET", path, ""); got.body != "[]\n" {
			t.Fatalf("nothing runs: %s", got.body)
		}
	}
	port := freePort(t)
	text := strings.Replace(front(p.raw().Data, port, backend(t)), "backend b from d\n", "backend b from d\n    description one, \"two\" and three\n", 1)
	p.succeed(text)
	held := dial(t, port)
	if err := echo(held); err != nil {
		t.Fatal(err)
	}
	p.succeed(p.raw().Data)
	held2 := dial(t, port)
	if err := echo(held2); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one worker for each", func() bool {
		infos := decode[models.ProcessInfos](t, p.want(200, "GET", "/runtime/info", "").body)
		if len(infos) != 2 {
			return false
		}
		now, old := infos[0].Info, infos[1].Info
		if now == nil || old == nil {
			t.Fatalf("%s %s", infos[0].Error, infos[1].Error)
		}
		if *now.Pid == *old.Pid || now.Uptime == nil || !strings.Contains(now.Version, ".") || now.ReleaseDate.String() == "1970-01-01" || *now.MaxConn < 100 {
			t.Fatalf("%+v", now)
		}
		return *now.Stopping == 0 && *old.Stopping == 1
	})
	stat := func(query string) *models.NativeStat {
		t.Helper()
		all := decode[models.NativeStats](t, p.want(200, "GET", "/stats/native?"+query, "").body)
		if len(all) != 1 || len(all[0].Stats) != 1 {
			t.Fatalf("%+v", all)
		}
		return all[0].Stats[0]
	}
	one := stat("type=backend")
	if one.Name != "b" || one.Type != "backend" || *one.Stats.Stot != 1 || *one.Stats.Scur != 1 || one.Stats.Status != "UP" || one.Stats.Mode != "tcp" {
		t.Fatalf("%+v", one.Stats)
	}
	held2.Close()
	eventually(t, "the bytes are counted", func() bool { return *stat("type=backend").Stats.Bin == 5 })
	one = stat("type=server&parent=b&name=n1")
	if one.Name != "n1" || one.BackendName != "b" || !strings.HasPrefix(one.Stats.Addr, "127.0.0.1:") || *one.Stats.Bout != 5 {
		t.Fatalf("%+v", one)
	}
	if all := decode[models.NativeStats](t, p.want(200, "GET", "/stats/native?type=server&parent=none", "").body); len(all[0].Stats) != 0 {
		t.Fatalf("%+v", all)
	}
	message(t, p.want(422, "GET", "/stats/native?type=bogus", "").body, 606)
	message(t, p.want(400, "GET", "/stats/native?name=b", "").body, 400)
	message(t, p.want(400, "GET", "/stats/native?type=server&name=b", "").body, 400)
	held.Close()
	eventually(t, "the old worker ends with its connection", func() bool {
		return len(decode[models.ProcessInfos](t, p.want(200, "GET", "/runtime/info", "").body)) == 1
	})
}

// upload posts a map.
func (p *plane) upload(status int, field, name, data string) response {
	p.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile(field, name)
	if err != nil {
		p.t.Fatal(err)
	}
	fmt.Fprint(part, data)
	form.Close()
	got := p.call(http.MethodPost, services+"/storage/maps", form.FormDataContentType(), body.String())
	if got.status != status {
		p.t.Fatalf("%s: %d %s", name, got.status, got.body)
	}
	return got
}

func TestMaps(t *testing.T) {
	p := run(t, shortDir(t), "")
	if got := p.want(200, "GET", "/storage/maps", ""); got.body != "[]\n" {
		t.Fatal(got.body)
	}
	made := decode[models.Map](t, p.upload(201, "file_upload", "r.map", "a b\n").body)
	if made.StorageName != "r.map" || made.File != filepath.Join(p.dir, "maps", "r.map") || *made.Size != 4 {
		t.Fatalf("%+v", made)
	}
	p.upload(409, "file_upload", "r.map", "a b\n")
	p.upload(400, "other", "s.map", "a b\n")
	p.upload(400, "file_upload", "a b.map", "a b\n")
	p.upload(400, "file_upload", ".r", "a b\n")
	if all := decode[models.Maps](t, p.want(200, "GET", "/storage/maps", "").body); len(all) != 1 || all[0].StorageName != "r.map" {
		t.Fatalf("%+v", all)
	}
	if got := p.want(200, "GET", "/storage/maps/r.map", ""); got.body != "a b\n" || got.header.Get("Content-Type") != "application/octet-stream" {
		t.Fatalf("%+v", got)
	}
	for _, name := range []string{"no.map", "..%2fhaproxy.cfg", "..%2F..%2Fetc%2Fpasswd", ".r.map.1"} {
		p.want(404, "GET", "/storage/maps/"+name, "")
		p.want(404, "PUT", "/storage/maps/"+name, "c d\n")
		p.want(404, "DELETE", "/storage/maps/"+name, "")
	}
	port, target := freePort(t), backend(t)
	p.succeed(strings.Replace(front(p.raw().Data, port, target), "default_backend b", "use_backend %[str(a),map_str("+made.File+")]", 1))
	if got := p.want(409, "DELETE", "/storage/maps/r.map", ""); !strings.Contains(got.body, "referenced in haproxy conf") {
		t.Fatal(got.body)
	}
	serves(t, port) // a leads to b
	p.want(204, "PUT", "/storage/maps/r.map?skip_reload=true", "a none\n")
	serves(t, port)
	got := p.want(202, "PUT", "/storage/maps/r.map", "a none\n")
	if end := p.reload(got.header.Get("Reload-Id")); end.Status != "succeeded" {
		t.Fatalf("%+v", end)
	}
	conn := dial(t, port)
	if err := echo(conn); err == nil {
		t.Fatal("the map was not read again")
	}
	p.want(204, "PUT", "/storage/maps/r.map?force_reload=true", "a b\n")
	serves(t, port)
	info, err := os.Stat(made.File)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info, err)
	}
	p.succeed(front(strings.SplitN(p.raw().Data, "\ndefaults", 2)[0], port, target))
	p.want(204, "DELETE", "/storage/maps/r.map", "")
}

func TestWithoutHAProxy(t *testing.T) {
	p := run(t, shortDir(t), "/nonexistent/haproxy")
	base := p.raw()
	for _, c := range [][2]string{
		{"POST", "/configuration/raw?version=1"}, {"GET", "/configuration/backends"}, {"POST", "/transactions?version=1"},
		{"GET", "/runtime/info"}, {"GET", "/stats/native"},
	} {
		got := p.want(503, c[0], c[1], front(base.Data, 1, "127.0.0.1:1"))
		if says := message(t, got.body, 503); !strings.Contains(says, "was not found") || !strings.Contains(says, "apt-get install haproxy") {
			t.Errorf("%v: %s", c, says)
		}
	}
	if p.raw() != base {
		t.Error("the configuration is another")
	}
}
