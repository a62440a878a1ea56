package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubebyon/kubebyon/deploy/apiclient"
	"github.com/kubebyon/kubebyon/deploy/devhost/machine"
)

const (
	workerName  = "bench-worker"
	cniConfig   = "/etc/cni/net.d/10-flannel.conflist"
	bareService = "bare-kubelet"
)

var tokenForm = regexp.MustCompile(`token=([a-z0-9]{6}\.[a-z0-9]{16})`)

// join measures the one-liner against a kubelet that is started by hand, on one machine in turns. Binaries and images are
// there, containerd and kubelet are stopped, and the Node object is gone, before each.
func (b *bench) join(ctx context.Context) error {
	worker, err := machine.Up(ctx, machine.Options{Name: workerName, Suite: machine.Bookworm, Init: machine.Systemd,
		Octet: b.layout.Net.Octet(), Cache: b.layout.Cache, State: b.layout.State, Log: b.out})
	if err != nil {
		return err
	}
	made, err := b.api.joinToken(ctx, b.tenant.cluster.ID)
	if err != nil {
		return err
	}
	token := tokenForm.FindStringSubmatch(made.JoinCommand)
	if token == nil {
		return fmt.Errorf("the join command has no token that we know")
	}
	bare := b.bareKubelet(token[1], worker.IP.String())

	// The first join fills the machine: what it installs stays.
	first, err := b.untilReady(ctx, worker, made.JoinCommand)
	if err != nil {
		return fmt.Errorf("the first join: %w", err)
	}
	conflist, err := os.ReadFile(filepath.Join(worker.Root(), cniConfig))
	if err != nil {
		return err
	}
	for _, c := range []struct {
		what, how string
		cni       []byte
	}{
		{"one-liner to Ready, cached binaries, the pod network's configuration in place", "on both sides the CNI configuration of the first join is there, so that Ready waits for no Pod", conflist},
		{"one-liner to Ready, cached binaries, the pod network still to come", "on both sides Ready waits until flannel's Pod has written the CNI configuration", nil},
	} {
		var ours, raw samples
		for range b.rounds {
			for _, run := range []struct {
				command string
				into    *samples
			}{{made.JoinCommand, &ours}, {bare, &raw}} {
				if err := b.leave(ctx, worker, c.cni); err != nil {
					return err
				}
				took, err := b.untilReady(ctx, worker, run.command)
				if err != nil {
					return err
				}
				*run.into = append(*run.into, took)
			}
			b.say("   one-liner %.2f s, bare kubelet %.2f s", ours[len(ours)-1], raw[len(raw)-1])
		}
		b.report.add(against(c.what, ours, raw, 3, "s", "from the command's start to Ready in the tenant's API (asked every 20 ms), on a Debian 12 with systemd that has joined before and left with `kubebyon-leave membership`, against a shell script that writes kubelet's configuration and bootstrap kubeconfig and starts containerd and kubelet there; "+c.how))
	}
	b.report.comment("The first one-liner on that machine, which fetched binaries and images from the mirror and installed them, took %s s to Ready.", number(first))
	if err := b.leave(ctx, worker, nil); err != nil {
		return err
	}
	return worker.Down(ctx)
}

// untilReady gives the seconds from the command's start until the node is Ready.
func (b *bench) untilReady(ctx context.Context, worker *machine.Machine, command string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var out bytes.Buffer
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- worker.Exec(ctx, nil, &out, &out, "/bin/sh", "-c", command) }()
	err := apiclient.Poll(ctx, 20*time.Millisecond, func() (bool, error) {
		node, err := b.tenant.api.CoreV1().Nodes().Get(ctx, workerName, metav1.GetOptions{})
		if err != nil {
			return false, nil //nolint:nilerr // it is not there yet
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionTrue, nil
			}
		}
		return false, nil
	})
	took := time.Since(began).Seconds()
	if failed := <-ended; failed != nil {
		return 0, fmt.Errorf("the command failed: %w\n%s", failed, out.String())
	}
	if err != nil {
		return 0, fmt.Errorf("the node is not Ready: %w\n%s", err, out.String())
	}
	return took, nil
}

// leave takes the machine out of the tenant and stops its containerd; what is installed stays.
func (b *bench) leave(ctx context.Context, worker *machine.Machine, cni []byte) error {
	script := `systemctl stop ` + bareService + ` 2>/dev/null
systemctl reset-failed ` + bareService + ` 2>/dev/null
systemctl start containerd && kubebyon-leave membership && systemctl stop containerd && rm -f /etc/cni/net.d/*`
	if out, err := worker.Run(ctx, "/bin/sh", "-c", script); err != nil {
		return fmt.Errorf("leaving: %w\n%s", err, out)
	}
	if cni != nil {
		if err := os.WriteFile(filepath.Join(worker.Root(), cniConfig), cni, 0o644); err != nil {
			return err
		}
	}
	now := int64(0)
	if err := b.tenant.api.CoreV1().Nodes().Delete(ctx, workerName, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	// Nobody is left on the machine to end its Pods.
	pods, err := b.tenant.api.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		if err := b.tenant.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return settle(ctx, breather)
}

// bareKubelet is what the join amounts to where nothing needs to be looked at, fetched or explained.
func (b *bench) bareKubelet(token, ip string) string {
	ca := b.tenant.config.CAData
	return strings.NewReplacer("@CA@", strings.TrimSpace(string(ca)), "@CA64@", base64.StdEncoding.EncodeToString(ca),
		"@SERVER@", b.tenant.cluster.APIEndpoint, "@TOKEN@", token, "@NAME@", workerName, "@IP@", ip, "@UNIT@", bareService).Replace(`set -e
mkdir -p /etc/kubernetes/pki /var/lib/kubelet
cat >/etc/kubernetes/pki/ca.crt <<'END'
@CA@
END
cat >/var/lib/kubelet/config.yaml <<'END'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization: {mode: Webhook}
cgroupDriver: systemd
clusterDNS: [10.128.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failSwapOn: false
rotateCertificates: true
END
cat >/etc/kubernetes/bootstrap-kubelet.conf <<'END'
apiVersion: v1
kind: Config
clusters:
- {name: t, cluster: {server: "@SERVER@", certificate-authority-data: "@CA64@"}}
users:
- {name: t, user: {token: "@TOKEN@"}}
contexts:
- {name: t, context: {cluster: t, user: t}}
current-context: t
END
systemctl start containerd
systemd-run --quiet --unit=@UNIT@ --property=KillMode=process "$(command -v kubelet)" --config=/var/lib/kubelet/config.yaml \
	--config-dir=/etc/kubernetes/kubelet.conf.d --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
	--kubeconfig=/etc/kubernetes/kubelet.conf --cert-dir=/var/lib/kubelet/pki --hostname-override=@NAME@ --node-ip=@IP@
`)
}
