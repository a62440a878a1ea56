package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kubebyon/kubebyon/pkg/tenant"
)

const usage = `usage: kubebyon-setup files [flags] DIR        each owner's secrets in a folder of its own below DIR
       kubebyon-setup kubernetes [flags]       each owner's secrets in a Secret of its own
`

// errUsage stands for what has been said already.
var errUsage = errors.New("usage")

// Main gives the exit status: 0 all is there, 1 something is not, 2 it was called wrongly.
func Main(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case len(args) > 0 && args[0] == "files":
		err = runFiles(args[1:], stdout, stderr)
	case len(args) > 0 && args[0] == "kubernetes":
		err = runKubernetes(ctx, args[1:], lookup, stdout, stderr)
	default:
		fmt.Fprint(stderr, usage)
		return 2
	}
	switch {
	case errors.Is(err, errUsage):
		return 2
	case err != nil:
		fmt.Fprintf(stderr, "kubebyon-setup: %v\n", err)
		return 1
	}
	return 0
}

// flags has those of both commands.
func flags(name string, o *options, stderr io.Writer) *flag.FlagSet {
	set := flag.NewFlagSet("kubebyon-setup "+name, flag.ContinueOnError)
	set.SetOutput(stderr)
	o.now = time.Now()
	set.Func("nats-tls", "names and addresses, separated by commas, that the NATS server is reached by: it then serves TLS", func(text string) error {
		for host := range strings.SplitSeq(text, ",") {
			if !hostForm.MatchString(host) {
				return fmt.Errorf("%.80q is no name or address", host)
			}
			o.natsHosts = append(o.natsHosts, host)
		}
		return nil
	})
	set.StringVar(&o.natsDir, "nats-dir", "/etc/nats", "where the NATS server sees its files")
	return set
}

var (
	hostForm = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.:]{0,251}[A-Za-z0-9])?$`)
	nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
)

func runFiles(args []string, stdout, stderr io.Writer) error {
	var o options
	ids := map[string]identity{}
	set := flags("files", &o, stderr)
	set.Func("owner", "whose an owner's files become, as NAME=UID:GID, such as gateway=65532:65532; more than once", func(text string) error {
		owner, id, _ := strings.Cut(text, "=")
		uid, gid, _ := strings.Cut(id, ":")
		u, err := strconv.ParseUint(uid, 10, 31)
		g, err2 := strconv.ParseUint(gid, 10, 31)
		if err != nil || err2 != nil || !slices.Contains(owners(), owner) {
			return fmt.Errorf("it accepts NAME=UID:GID with a name of %s", strings.Join(owners(), ", "))
		}
		ids[owner] = identity{int(u), int(g)}
		return nil
	})
	if err := set.Parse(args); err != nil {
		return errUsage
	}
	if set.NArg() != 1 {
		fmt.Fprint(stderr, usage)
		return errUsage
	}
	to, done, err := openFolder(set.Arg(0), ids)
	if err != nil {
		return err
	}
	defer done()
	have, err := to.read()
	if err != nil {
		return err
	}
	want, err := complete(have, o)
	if err != nil {
		return err
	}
	return to.write(have, want, stdout)
}

func runKubernetes(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) error {
	var o options
	set := flags("kubernetes", &o, stderr)
	namespace := set.String("namespace", "", "where the Secrets are; needed")
	prefix := set.String("prefix", "kubebyon", "what the Secrets' names begin with, before - and the owner's")
	if err := set.Parse(args); err != nil {
		return errUsage
	}
	if set.NArg() != 0 || !nameForm.MatchString(*namespace) || !nameForm.MatchString(*prefix) {
		fmt.Fprint(stderr, usage)
		set.PrintDefaults()
		return errUsage
	}
	path, _ := lookup("KUBEBYON_KUBECONFIG_PATH") // none: the cluster that this runs in
	config, err := tenant.HostConfig(path)
	if err != nil {
		return err
	}
	config.Timeout = 30 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("the cluster's client: %w", err)
	}
	return (&secrets{client: client, namespace: *namespace, prefix: *prefix}).fill(ctx, o, stdout)
}
