package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// config is the plugin's own configuration.
type config struct {
	CNIVersion    string         `json:"cniVersion"`
	Name          string         `json:"name"`
	SubnetFile    string         `json:"subnetFile"`
	DataDir       string         `json:"dataDir"`
	Delegate      map[string]any `json:"delegate"`
	RuntimeConfig map[string]any `json:"runtimeConfig,omitempty"`
	PrevResult    map[string]any `json:"prevResult,omitempty"`
}

func parseConfig(b []byte) (config, error) {
	c := config{SubnetFile: "/run/flannel/subnet.env", DataDir: "/var/lib/cni/flannel"}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	for _, reserved := range []string{"name", "ipam"} {
		if _, ok := c.Delegate[reserved]; ok {
			return c, fmt.Errorf("configuration: delegate must not set %q", reserved)
		}
	}
	return c, nil
}

// subnet is what flanneld says about this node.
type subnet struct {
	network, own string
	mtu          int
	ipMasq       bool
}

func parseSubnet(text string) (subnet, error) {
	var s subnet
	var err error
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		key, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), "=")
		switch key {
		case "FLANNEL_NETWORK":
			s.network = value
		case "FLANNEL_SUBNET":
			p, err := netip.ParsePrefix(value) // flanneld writes the bridge's own address
			if err != nil {
				return s, fmt.Errorf("FLANNEL_SUBNET: %w", err)
			}
			s.own = p.Masked().String()
		case "FLANNEL_MTU":
			if s.mtu, err = strconv.Atoi(value); err != nil {
				return s, fmt.Errorf("FLANNEL_MTU: %w", err)
			}
		case "FLANNEL_IPMASQ":
			if s.ipMasq, err = strconv.ParseBool(value); err != nil {
				return s, fmt.Errorf("FLANNEL_IPMASQ: %w", err)
			}
		}
	}
	if s.network == "" || s.own == "" || s.mtu == 0 {
		return s, fmt.Errorf("FLANNEL_NETWORK, FLANNEL_SUBNET or FLANNEL_MTU is missing")
	}
	return s, nil
}

// complete fills the delegate's configuration in. What the user set wins, except for name and addresses.
func (c config) complete(s subnet) map[string]any {
	d := map[string]any{"type": "bridge", "mtu": s.mtu, "ipMasq": !s.ipMasq} // masquerading is flanneld's where it says so
	for k, v := range c.Delegate {
		d[k] = v
	}
	if d["type"] == "bridge" {
		if v, ok := d["isDefaultGateway"].(bool); !ok || !v {
			d["isGateway"] = true
		}
	}
	d["name"], d["cniVersion"] = c.Name, c.CNIVersion
	d["ipam"] = map[string]any{"type": "host-local",
		"ranges": [][]map[string]any{{{"subnet": s.own}}}, "routes": []map[string]any{{"dst": s.network}}}
	if c.RuntimeConfig != nil {
		d["runtimeConfig"] = c.RuntimeConfig
	}
	return d
}
