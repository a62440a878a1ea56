package main

import (
	"encoding/json"
	"testing"
)

func TestComplete(t *testing.T) {
	const env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	const conf = `{"cniVersion":"0.3.1","name":"cbr0","type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}}`
	const want = `{"cniVersion":"0.3.1","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.3.0/24"}]],` +
		`"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"isDefaultGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}`
	s, err := parseSubnet(env)
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig([]byte(conf))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(c.complete(s))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestRefused(t *testing.T) {
	for _, text := range []string{"", "FLANNEL_NETWORK=10.244.0.0/16\n", "FLANNEL_NETWORK=a\nFLANNEL_SUBNET=b\n",
		"FLANNEL_NETWORK=a\nFLANNEL_SUBNET=10.0.0.0/24\nFLANNEL_MTU=x\n"} {
		if _, err := parseSubnet(text); err == nil {
			t.Errorf("subnet file %q was accepted", text)
		}
	}
	for _, text := range []string{"", `{"delegate":{"ipam":{}}}`, `{"delegate":{"name":"x"}}`} {
		if _, err := parseConfig([]byte(text)); err == nil {
			t.Errorf("configuration %q was accepted", text)
		}
	}
}
