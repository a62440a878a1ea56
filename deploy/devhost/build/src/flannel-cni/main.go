// Command flannel is the development host's stand-in for flannel's CNI plugin, whose module cannot be had everywhere:
// it turns what flanneld wrote into a configuration of the plugin that does the work (bridge) and hands over to it.
// Its configuration is upstream's (subnetFile, dataDir, delegate, runtimeConfig). It must never be shipped.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: remove, Check: check}, version.All, "flannel (development host)")
}

func add(args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(c.SubnetFile)
	if err != nil {
		return fmt.Errorf("flanneld has not set this node's network up yet: %w", err)
	}
	net, err := parseSubnet(string(b))
	if err != nil {
		return fmt.Errorf("%s: %w", c.SubnetFile, err)
	}
	delegate := c.complete(net)
	kind, _ := delegate["type"].(string)
	conf, err := json.Marshal(delegate)
	if err != nil {
		return err
	}
	// Kept for the removal: by then the subnet file may say something else.
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.DataDir, args.ContainerID), conf, 0o600); err != nil {
		return err
	}
	result, err := invoke.DelegateAdd(context.Background(), kind, conf, nil)
	if err != nil {
		return fmt.Errorf("plugin %s: %w", kind, err)
	}
	return result.Print()
}

// remove does nothing for a container that was never added: removals are repeated.
func remove(args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	file := filepath.Join(c.DataDir, args.ContainerID)
	conf, kind, err := saved(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := invoke.DelegateDel(context.Background(), kind, conf, nil); err != nil {
		return fmt.Errorf("plugin %s: %w", kind, err)
	}
	return os.Remove(file)
}

func check(args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	conf, kind, err := saved(filepath.Join(c.DataDir, args.ContainerID))
	if err != nil {
		return err
	}
	return invoke.DelegateCheck(context.Background(), kind, conf, nil)
}

func saved(file string) (conf []byte, kind string, err error) {
	if conf, err = os.ReadFile(file); err != nil {
		return nil, "", err
	}
	var head struct{ Type string }
	if err := json.Unmarshal(conf, &head); err != nil {
		return nil, "", fmt.Errorf("%s: %w", file, err)
	}
	return conf, head.Type, nil
}
