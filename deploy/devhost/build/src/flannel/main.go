// Command flanneld is the development host's stand-in for upstream's flanneld, whose own main imports a cloud vendor's
// client that cannot be had everywhere. It runs upstream's packages for what the pod network uses: leases in the
// Kubernetes API, the backends vxlan and host-gw, and both packet filters. Flags, environment and the file it writes
// are upstream's. It must never be shipped: production runs upstream's image.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/hostgw"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
	"github.com/flannel-io/flannel/pkg/trafficmngr/nftables"
	"k8s.io/klog/v2"
)

// resyncSeconds is how often the packet filter's rules are put right, upstream's default.
const resyncSeconds = 5

type options struct {
	interfaces      list
	ipMasq          bool
	kubeSubnetMgr   bool
	netConf         string
	subnetFile      string
	publicIP        string
	kubeconfig      string
	annotations     string
	forwardRules    bool
	nodeUnavailable bool
}

// list is a flag that can be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

// Set adds a value.
func (l *list) Set(v string) error { *l = append(*l, v); return nil }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:])
	if err == nil {
		err = run(ctx, o)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "flanneld:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("flanneld", flag.ContinueOnError)
	klog.InitFlags(f)
	f.Var(&o.interfaces, "iface", "interface (name or IP) to other nodes; the first that is found; default: the default route's")
	f.BoolVar(&o.ipMasq, "ip-masq", false, "masquerade what leaves the pod network")
	f.BoolVar(&o.kubeSubnetMgr, "kube-subnet-mgr", false, "leases from the Kubernetes API: the only way here")
	f.StringVar(&o.netConf, "net-config-path", "/etc/kube-flannel/net-conf.json", "the network's configuration")
	f.StringVar(&o.subnetFile, "subnet-file", "/run/flannel/subnet.env", "file to write for the CNI plugin")
	f.StringVar(&o.publicIP, "public-ip", "", "address at which other nodes reach this one")
	f.StringVar(&o.kubeconfig, "kubeconfig-file", "", "kubeconfig; not needed in a pod")
	f.StringVar(&o.annotations, "kube-annotation-prefix", "flannel.alpha.coreos.com", "prefix of node annotations")
	f.BoolVar(&o.forwardRules, "iptables-forward-rules", true, "accept forwarded traffic of the pod network")
	f.BoolVar(&o.nodeUnavailable, "set-node-network-unavailable", true, "clear the node's NetworkUnavailable once ready")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if !o.kubeSubnetMgr {
		return o, errors.New("only --kube-subnet-mgr is supported")
	}
	return o, nil
}

// run sets the node's network up and keeps it until ctx ends.
func run(ctx context.Context, o options) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	leases, err := kube.NewSubnetManager(ctx, "", o.kubeconfig, o.annotations, o.netConf, o.nodeUnavailable)
	if err != nil {
		return fmt.Errorf("leases: %w", err)
	}
	config, err := leases.GetNetworkConfig(ctx)
	if err != nil {
		return fmt.Errorf("network configuration: %w", err)
	}
	if config.EnableIPv6 {
		return errors.New("only IPv4 is supported")
	}
	link, err := findInterface(ctx, o, leases)
	if err != nil {
		return err
	}
	be, err := backend.NewManager(ctx, leases, link).GetBackend(config.BackendType)
	if err != nil {
		return fmt.Errorf("backend %s (there are vxlan and host-gw): %w", config.BackendType, err)
	}
	network, err := be.RegisterNetwork(ctx, &wg, config)
	if err != nil {
		return fmt.Errorf("register with backend %s: %w", config.BackendType, err)
	}
	if err := filter(ctx, o, config, network); err != nil {
		return err
	}
	lease := network.Lease()
	if err := leases.HandleSubnetFile(o.subnetFile, config, o.ipMasq, lease.Subnet, lease.IPv6Subnet, network.MTU()); err != nil {
		return fmt.Errorf("write %s: %w", o.subnetFile, err)
	}
	klog.Infof("network %s, this node %s, mtu %d: %s written", config.Network, lease.Subnet, network.MTU(), o.subnetFile)
	wg.Go(func() {
		defer cancel() // without its watch of the leases the network would silently rot
		network.Run(ctx)
	})
	if err := leases.CompleteLease(ctx, lease, &wg); err != nil {
		return fmt.Errorf("complete the lease: %w", err)
	}
	<-ctx.Done()
	return nil
}

func findInterface(ctx context.Context, o options, leases subnet.Manager) (*backend.ExternalInterface, error) {
	family, err := ipmatch.GetIPFamily(true, false)
	if err != nil {
		return nil, err
	}
	public := ipmatch.PublicIPOpts{PublicIP: o.publicIP}
	if stored, _ := leases.GetStoredPublicIP(ctx); stored != "" {
		public.PublicIP = stored
	}
	names := o.interfaces
	if len(names) == 0 {
		names = list{public.PublicIP} // empty: the default route's interface
	}
	var errs []error
	for _, n := range names {
		link, err := ipmatch.LookupExtIface(n, "", "", family, public)
		if err == nil {
			return link, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no interface to other nodes: %w", errors.Join(errs...))
}

// filter sets up the rules of the packet filter that the configuration names, and removes the other's.
func filter(ctx context.Context, o options, config *subnet.Config, network backend.Network) error {
	var used, unused trafficmngr.TrafficManager = &iptables.IPTablesManager{}, &nftables.NFTablesManager{}
	if config.EnableNFTables {
		used, unused = unused, used
	}
	if err := unused.CleanUp(ctx); err != nil {
		return fmt.Errorf("clean the other packet filter's rules: %w", err)
	}
	if err := used.Init(ctx); err != nil {
		return fmt.Errorf("packet filter: %w", err)
	}
	if o.ipMasq {
		var noNet ip.IP4Net
		var noNet6 ip.IP6Net
		if err := used.SetupAndEnsureMasqRules(ctx, config.Network, noNet, noNet, config.IPv6Network, noNet6, noNet6, network.Lease(), resyncSeconds, false); err != nil {
			return fmt.Errorf("masquerading: %w", err)
		}
	}
	if o.forwardRules {
		used.SetupAndEnsureForwardRules(ctx, config.Network, config.IPv6Network, resyncSeconds)
	}
	return nil
}
