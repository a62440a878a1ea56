package arch

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/kubebyon/kubebyon/"

// pkg is one folder of Go files. Imports of our own packages are shortened to their folder, with a leading "@".
type pkg struct {
	dir     string // from the repository's root, with slashes
	imports []string
	tests   []string // imports of its _test.go files
}

// pure are packages of services that are domain besides internal/<service>, and the gateway's domain. Everything else
// under an internal is an adapter, so that a new package is held to the stricter rule of its kind until it is named here.
var pure = map[string]bool{
	"services/token/internal/joinscript": true,
	"gateway/internal/account":           true,
	"gateway/internal/apitoken":          true,
	"gateway/internal/audit":             true,
	"gateway/internal/attempt":           true,
	"gateway/internal/captcha":           true,
	"gateway/internal/certificate":       true,
	"gateway/internal/opaque":            true,
	"gateway/internal/clientaddr":        true,
	"gateway/internal/secondfactor":      true,
	"gateway/internal/session":           true,
	"gateway/internal/settings":          true,
	"gateway/internal/ratelimit":         true,
	"gateway/internal/idempotency":       true,
	"gateway/internal/kubectlfilter":     true,
	"gateway/internal/mirror":            true,
	"gateway/internal/openid":            true,
}

// beneath are adapters that another may stand on, each with the reason.
var beneath = map[string]string{
	"services/cluster/internal/tenantsetup":  "what a tenant is given, over clients of any cluster: it reaches nothing by itself",
	"services/cluster/internal/tenantaccess": "identities in a tenant, over a client that is given to it: it reaches nothing by itself",
}

// technology is what no domain may know: NATS, SQL, Kubernetes, Helm, HAProxy, and our own packages that carry them.
var technology = []string{
	"github.com/nats-io/", "github.com/go-kit/", "database/sql", "github.com/jackc/", "github.com/pressly/goose", "github.com/riverqueue/",
	"k8s.io/", "sigs.k8s.io/", "helm.sh/", "github.com/haproxytech/", "@pkg/rpc", "@pkg/postgres", "@pkg/tenant",
}

// check gives each broken rule as one line.
func check(p pkg) []string {
	var wrong []string
	say := func(format string, args ...any) {
		wrong = append(wrong, p.dir+" "+fmt.Sprintf(format, args...))
	}
	for i, imp := range append(slices.Clone(p.imports), p.tests...) {
		ours := strings.HasPrefix(imp, "@")
		to := strings.TrimPrefix(imp, "@")
		inTest := i >= len(p.imports)

		// Rules that hold in tests too.
		switch top(p.dir) {
		case "pkg":
			if ours && top(to) != "pkg" {
				say("imports %s: pkg imports no other module of ours", to)
			}
		case "gateway":
			if ours && (top(to) == "services" || top(to) == "deploy") {
				say("imports %s: the gateway asks services over NATS and never imports them", to)
			}
		case "services":
			if ours && (top(to) == "gateway" || top(to) == "deploy") {
				say("imports %s: services import pkg alone", to)
			}
			if ours && top(to) == "services" && service(p.dir) != "" && service(to) != service(p.dir) {
				say("imports %s: services ask one another over NATS", to)
			}
		}
		if imp == "github.com/go-kit/kit/transport/nats" {
			say("imports %s: it drops headers and decodes errors as success; use pkg/rpc", imp)
		}
		if strings.HasPrefix(imp, "github.com/go-kit/") && p.dir != "pkg/rpc" {
			say("imports %s: go-kit lives in pkg/rpc", imp)
		}
		if inTest {
			continue
		}

		if ours && under(to, "pkg/test") && top(p.dir) != "deploy" && !under(p.dir, "pkg/test") && !strings.HasSuffix(p.dir, "test") {
			say("imports %s outside of a test", to)
		}
		if under(p.dir, "pkg/contract") || p.dir == "pkg/fault" {
			if ours && !under(to, "pkg/contract") || !ours && !standard(imp) {
				say("imports %s: contract and fault import the standard library alone", to)
			}
		}
		if p.dir == "pkg/rpc" && ours && !under(to, "pkg/contract") && to != "pkg/fault" && to != "pkg/telemetry" {
			say("imports %s: rpc imports contract, fault and telemetry", to)
		}
		layers(p, imp, to, ours, say)
	}
	return wrong
}

// layers holds main → app → adapters → domain inside a service and inside the gateway.
func layers(p pkg, imp, to string, ours bool, say func(string, ...any)) {
	root := "gateway"
	if s := service(p.dir); s != "" {
		root = "services/" + s
	} else if top(p.dir) != "gateway" {
		return
	}
	kind, unit := layer(root, p.dir)
	toKind, toUnit := layer(root, to)
	switch {
	case kind == "domain" && slices.ContainsFunc(technology, func(t string) bool { return strings.HasPrefix(imp, t) }):
		say("imports %s: the domain knows no NATS, SQL or Kubernetes", to)
	case !ours || !under(to, root):
	case kind == "main" && toKind != "app" && p.dir == root:
		say("imports %s: main imports its app alone", to)
	case kind == "domain" && (toKind == "adapter" || toKind == "app"):
		say("imports %s: the domain imports neither adapters nor app", to)
	case kind == "adapter" && toKind == "app":
		say("imports %s: adapters do not import app", to)
	case kind == "adapter" && toKind == "adapter" && unit != toUnit && beneath[toUnit] == "":
		say("imports %s: adapters do not import their siblings", to)
	}
}

// layer gives a folder's kind inside root and the package that it belongs to (internal/postgres/migrations is postgres').
func layer(root, dir string) (kind, unit string) {
	rel, ok := strings.CutPrefix(dir, root+"/")
	switch {
	case dir == root:
		return "main", dir
	case !ok:
		return "", ""
	case rel == "app" || strings.HasPrefix(rel, "app/"):
		return "app", root + "/app"
	}
	rest, ok := strings.CutPrefix(rel, "internal/")
	if !ok {
		return "public", dir // a chart, an API description: data that anybody in the service may embed
	}
	name, _, _ := strings.Cut(rest, "/")
	unit = root + "/internal/" + name
	if pure[unit] || name == path.Base(root) {
		return "domain", unit
	}
	return "adapter", unit
}

func top(dir string) string { s, _, _ := strings.Cut(dir, "/"); return s }

func service(dir string) string {
	rest, ok := strings.CutPrefix(dir, "services/")
	if !ok {
		return ""
	}
	return top(rest)
}

func under(dir, parent string) bool { return dir == parent || strings.HasPrefix(dir, parent+"/") }

func standard(imp string) bool { return !strings.Contains(top(imp), ".") }

// load reads the four modules below root. Folders with a go.mod of their own inside a module are others' business.
func load(root string) ([]pkg, error) {
	found := map[string]*pkg{}
	for _, m := range []string{"pkg", "gateway", "services", "deploy"} {
		if _, err := os.Stat(filepath.Join(root, m, "go.mod")); err != nil {
			return nil, fmt.Errorf("module %s: %w", m, err)
		}
		err := filepath.WalkDir(filepath.Join(root, m), func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, p)
			if err != nil {
				return err
			}
			rel = filepath.ToSlash(rel)
			if d.IsDir() {
				name := d.Name()
				_, err := os.Stat(filepath.Join(p, "go.mod"))
				if name == "testdata" || name == "node_modules" || strings.HasPrefix(name, ".") || (err == nil && rel != m) {
					return fs.SkipDir
				}
				return nil
			}
			if !strings.HasSuffix(rel, ".go") {
				return nil
			}
			imports, skip, err := importsOf(p)
			if err != nil || skip {
				return err
			}
			dir := path.Dir(rel)
			if found[dir] == nil {
				found[dir] = &pkg{dir: dir}
			}
			if strings.HasSuffix(rel, "_test.go") {
				found[dir].tests = append(found[dir].tests, imports...)
			} else {
				found[dir].imports = append(found[dir].imports, imports...)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	var all []pkg
	for _, p := range found {
		slices.Sort(p.imports)
		slices.Sort(p.tests)
		p.imports, p.tests = slices.Compact(p.imports), slices.Compact(p.tests)
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b pkg) int { return strings.Compare(a.dir, b.dir) })
	return all, nil
}

// importsOf skips files that only hold a dependency in go.mod: their build tag is never set.
func importsOf(file string) (imports []string, skip bool, err error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return nil, false, err
	}
	for _, tag := range []string{"pending", "graph"} {
		if strings.HasPrefix(string(src), "//go:build "+tag+"\n") {
			return nil, true, nil
		}
	}
	f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ImportsOnly)
	if err != nil {
		return nil, false, err
	}
	for _, s := range f.Imports {
		imp, err := strconv.Unquote(s.Path.Value)
		if err != nil {
			return nil, false, err
		}
		if rest, ok := strings.CutPrefix(imp, module); ok {
			imp = "@" + rest
		}
		imports = append(imports, imp)
	}
	return imports, false, nil
}

func TestImportDirections(t *testing.T) {
	root, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	all, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("only %d packages were found below %s", len(all), root)
	}
	for _, p := range all {
		for _, line := range check(p) {
			t.Error(line)
		}
	}
}

func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("there is no go.work above this folder")
		}
	}
}

// TestEachRuleCanFail proves that the rules bite, and that what they allow passes.
func TestEachRuleCanFail(t *testing.T) {
	for _, c := range []struct{ dir, imp, want string }{
		{"pkg/fault", "github.com/x/y", "standard library alone"},
		{"pkg/fault", "@pkg/telemetry", "standard library alone"},
		{"pkg/contract/clusterv1", "@pkg/fault", "standard library alone"},
		{"pkg/contract/clusterv1", "@pkg/contract", ""},
		{"pkg/contract", "time", ""},
		{"pkg/rpc", "@pkg/postgres", "rpc imports contract"},
		{"pkg/rpc", "@pkg/contract", ""},
		{"pkg/rpc", "github.com/go-kit/kit/endpoint", ""},
		{"pkg/rpc", "github.com/go-kit/kit/transport/nats", "drops headers"},
		{"gateway/app", "github.com/go-kit/kit/endpoint", "lives in pkg/rpc"},
		{"pkg/tenant", "@services/cluster/app", "no other module"},
		{"pkg/tenant", "@pkg/test/kubetest", "outside of a test"},
		{"pkg/tenant_test", "@gateway/app", "no other module"},
		{"gateway/internal/httpapi", "@services/cluster/app", "never imports them"},
		{"gateway/internal/httpapi", "@pkg/test/pgtest", "outside of a test"},
		{"gateway/internal/httpapi", "@gateway/internal/account", ""},
		{"gateway/internal/httpapi", "@gateway/internal/postgres", "siblings"},
		{"gateway/internal/session", "github.com/jackc/pgx/v5", "knows no"},
		{"services/cluster/app", "@gateway/app", "pkg alone"},
		{"services/cluster/app", "@services/token/app", "over NATS"},
		{"services/cluster", "@services/cluster/app", ""},
		{"services/cluster", "@services/cluster/internal/postgres", "its app alone"},
		{"services/cluster/app", "@services/cluster/internal/postgres", ""},
		{"services/cluster/internal/postgres", "@services/cluster/internal/cluster", ""},
		{"services/cluster/internal/postgres/migrations", "embed", ""},
		{"services/cluster/internal/postgres", "@services/cluster/internal/postgres/migrations", ""},
		{"services/cluster/internal/postgres", "@services/cluster/internal/helm", "siblings"},
		{"services/cluster/internal/helm", "@services/cluster/app", "do not import app"},
		{"services/cluster/internal/helm", "@services/cluster/chart", ""},
		{"services/cluster/internal/cluster", "@services/cluster/internal/helm", "neither adapters nor app"},
		{"services/cluster/internal/cluster", "github.com/nats-io/nats.go", "knows no"},
		{"services/cluster/internal/cluster", "@pkg/rpc", "knows no"},
		{"services/cluster/internal/cluster", "database/sql", "knows no"},
		{"services/cluster/internal/cluster", "k8s.io/api/core/v1", "knows no"},
		{"services/cluster/internal/cluster", "@pkg/contract/clusterv1", ""},
		{"services/token/internal/joinscript", "k8s.io/api/core/v1", "knows no"},
		{"deploy/standalone", "@services/cluster/app", ""},
		{"deploy/acceptance", "@pkg/test/pgtest", ""},
	} {
		got := strings.Join(check(pkg{dir: c.dir, imports: []string{c.imp}}), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s importing %s: got %q, want %q", c.dir, c.imp, got, c.want)
		}
	}
	if got := check(pkg{dir: "services/token/app", tests: []string{"@services/cluster/app", "@pkg/test/pgtest"}}); len(got) != 1 {
		t.Errorf("tests of services: %q", got)
	}
}

// TestATreeThatBreaksThemIsCaught goes the whole way, from files.
func TestATreeThatBreaksThemIsCaught(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"pkg/go.mod": "module x", "gateway/go.mod": "module x", "services/go.mod": "module x", "deploy/go.mod": "module x",
		"services/token/internal/token/token.go": "package token\n\nimport _ \"" + module + "services/token/internal/kube\"\n",
		"gateway/app/app_test.go":                "package app\n\nimport _ \"" + module + "services/token/app\"\n",
		"gateway/deps.go":                        "//go:build pending\n\npackage gateway\n\nimport _ \"github.com/go-kit/kit/endpoint\"\n",
		"deploy/tools/go.mod":                    "module other",
		"deploy/tools/x.go":                      "package x\n\nimport _ \"github.com/go-kit/kit/endpoint\"\n",
	} {
		p := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range all {
		got = append(got, check(p)...)
	}
	if len(got) != 2 || !strings.Contains(got[0], "gateway/app") || !strings.Contains(got[1], "services/token/internal/token") {
		t.Fatalf("got %q", got)
	}
}
