package arch

import (
	"errors"
	"fmt"
	"go/ast"
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

	"github.com/kubebyon/kubebyon/pkg/natsauth"
)

// subjects reads pkg/contract: "clusterv1.Get" to its subject.
func subjects(root string) (map[string]string, error) {
	found := map[string]string{}
	err := sources(filepath.Join(root, "pkg", "contract"), func(_ string, f *ast.File) error {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, value := range spec.Values {
				literal, ok := value.(*ast.CompositeLit)
				if !ok {
					continue
				}
				for _, element := range literal.Elts {
					field, ok := element.(*ast.KeyValueExpr)
					if !ok {
						continue
					}
					text, ok := field.Value.(*ast.BasicLit)
					if name, isIdent := field.Key.(*ast.Ident); ok && isIdent && name.Name == "Subject" {
						if subject, err := strconv.Unquote(text.Value); err == nil {
							found[f.Name.Name+"."+spec.Names[i].Name] = subject
						}
					}
				}
			}
			return true
		})
		return nil
	})
	return found, err
}

// kinds are the functions of pkg/rpc that need something of the NATS server.
var kinds = map[string]func(*natsauth.Row) *[]string{
	"Client":    func(r *natsauth.Row) *[]string { return &r.Calls },
	"Serve":     func(r *natsauth.Row) *[]string { return &r.Serves },
	"ServeAs":   func(r *natsauth.Row) *[]string { return &r.Serves },
	"Publish":   func(r *natsauth.Row) *[]string { return &r.Publishes },
	"Subscribe": func(r *natsauth.Row) *[]string { return &r.Listens },
}

// uses reads what the code below dir calls, serves, publishes and listens to.
func uses(dir string, service natsauth.Service, subjects map[string]string) (natsauth.Row, error) {
	var row natsauth.Row
	err := sources(dir, func(file string, f *ast.File) error {
		names := map[string]string{} // of imports, as this file says them
		for _, s := range f.Imports {
			imp, err := strconv.Unquote(s.Path.Value)
			if err != nil {
				return err
			}
			name := path.Base(imp)
			if s.Name != nil {
				name = s.Name.Name
			}
			names[name] = strings.TrimPrefix(imp, module)
		}
		var wrong []error
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			callee := call.Fun
			switch generic := callee.(type) {
			case *ast.IndexExpr:
				callee = generic.X
			case *ast.IndexListExpr:
				callee = generic.X
			}
			fun, ok := callee.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := fun.X.(*ast.Ident); !ok || names[pkg.Name] != "pkg/rpc" {
				return true
			}
			if fun.Sel.Name == "NewServer" { // it answers ping by itself
				row.Serves = append(row.Serves, "kubebyon.v1."+string(service)+".ping")
			}
			of := kinds[fun.Sel.Name]
			if of == nil {
				return true
			}
			named := 0
			for _, arg := range call.Args {
				ast.Inspect(arg, func(n ast.Node) bool {
					sel, ok := n.(*ast.SelectorExpr)
					if !ok {
						return true
					}
					pkg, ok := sel.X.(*ast.Ident)
					if !ok || !strings.HasPrefix(names[pkg.Name], "pkg/contract/") {
						return true
					}
					if subject := subjects[path.Base(names[pkg.Name])+"."+sel.Sel.Name]; subject != "" {
						named++
						list := of(&row)
						*list = append(*list, subject)
					}
					return true
				})
			}
			if named != 1 {
				wrong = append(wrong, fmt.Errorf("%s: rpc.%s does not name its method or event of the contract, once, where it is called", file, fun.Sel.Name))
			}
			return true
		})
		return errors.Join(wrong...)
	})
	for _, list := range []*[]string{&row.Calls, &row.Serves, &row.Publishes, &row.Listens} {
		*list = distinct(*list)
	}
	return row, err
}

func distinct(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

// sources parses the Go files below dir that are no tests.
func sources(dir string, each func(file string, f *ast.File) error) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		return each(p, f)
	})
}

// TestNATSUsersAreHeldToTheCode holds that a service's user may do what its code does, and nothing else.
func TestNATSUsersAreHeldToTheCode(t *testing.T) {
	root, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	all, err := subjects(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d subjects were found in the contract", len(all))
	}
	folders := map[natsauth.Service]string{natsauth.Gateway: "gateway"}
	entries, err := os.ReadDir(filepath.Join(root, "services"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			folders[natsauth.Service(e.Name())] = "services/" + e.Name()
		}
	}
	if len(folders) != len(natsauth.Services()) {
		t.Errorf("there are %d services and %d users", len(folders), len(natsauth.Services()))
	}
	for _, service := range natsauth.Services() {
		code, err := uses(filepath.Join(root, folders[service]), service, all)
		if err != nil {
			t.Error(err)
		}
		for _, line := range differences(code, natsauth.Of(service)) {
			t.Errorf("%s: %s", service, line)
		}
	}
}

// differences tells what to do about each.
func differences(code, table natsauth.Row) []string {
	var wrong []string
	for what, of := range map[string][2][]string{
		"Calls": {code.Calls, table.Calls}, "Serves": {code.Serves, table.Serves},
		"Publishes": {code.Publishes, table.Publishes}, "Listens": {code.Listens, table.Listens},
	} {
		for _, s := range of[0] {
			if !slices.Contains(of[1], s) {
				wrong = append(wrong, fmt.Sprintf("the code needs %s: add it to %s in its row of pkg/natsauth", s, what))
			}
		}
		for _, s := range of[1] {
			if !slices.Contains(of[0], s) {
				wrong = append(wrong, fmt.Sprintf("no code needs %s: take it out of %s in its row of pkg/natsauth", s, what))
			}
		}
		if len(distinct(of[1])) != len(of[1]) {
			wrong = append(wrong, what+" names one twice")
		}
	}
	slices.Sort(wrong)
	return wrong
}

// TestWhatTheCodeUsesIsRead proves that the reading sees each form, and says where it cannot see.
func TestWhatTheCodeUsesIsRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name, body string) {
		t.Helper()
		text := "package x\n\nimport (\n\t\"" + module + "pkg/rpc\"\n\tc \"" + module + "pkg/contract/clusterv1\"\n)\n\nfunc f() {\n" + body + "\n}\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	known := map[string]string{"clusterv1.Get": "get", "clusterv1.List": "list", "clusterv1.Changed": "changed"}
	write("a.go", `
	_ = rpc.Client(conn, c.Get)
	_ = rpc.Client[c.GetRequest, c.Cluster](conn, unread(c.List))
	s := rpc.NewServer(conn, o)
	rpc.Serve(s, c.Get, func(req c.GetRequest) {})
	rpc.ServeAs(s, c.List, h)
	_ = rpc.Publish(conn, c.Changed, log)
	_, _ = rpc.Subscribe(conn, c.Changed, log, func(c.ChangedEvent) {})`)
	write("a_test.go", `_ = rpc.Client(conn, method)`)
	row, err := uses(dir, "x", known)
	want := natsauth.Row{Calls: []string{"get", "list"}, Serves: []string{"get", "kubebyon.v1.x.ping", "list"}, Publishes: []string{"changed"}, Listens: []string{"changed"}}
	if got := differences(row, want); err != nil || len(got) != 0 {
		t.Fatalf("%v, %q", err, got)
	}
	if got := differences(natsauth.Row{Calls: []string{"a"}}, natsauth.Row{Calls: []string{"b", "b"}}); len(got) != 4 {
		t.Errorf("%q", got)
	}
	write("b.go", `_ = rpc.Client(conn, method)`)
	if _, err := uses(dir, "x", known); err == nil || !strings.Contains(err.Error(), "b.go: rpc.Client does not name") {
		t.Errorf("a method that cannot be seen: %v", err)
	}
}
