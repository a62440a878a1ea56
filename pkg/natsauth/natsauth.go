// Package natsauth says what each service may do on NATS: which methods it may call, which it answers, and that nobody else
// reads its answers. It must never hold a wildcard over subjects of ours, nor log or return a seed but to who made it.
package natsauth

import (
	"slices"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
	"github.com/kubebyon/kubebyon/pkg/rpc"
)

// Service is a process with a user of its own on the NATS server. Its replicas share that.
type Service string

// The services.
const (
	Gateway Service = "gateway"
	Cluster Service = "cluster"
	Token   Service = "token"
	Node    Service = "node"
	Edge    Service = "edge"
)

// Services gives them all, always in the same order.
func Services() []Service { return []Service{Gateway, Cluster, Token, Node, Edge} }

// ConnectionName is what a service gives to rpc.Connect: its inbox, which it alone may read, follows from it.
func (s Service) ConnectionName() string { return "kubebyon-" + string(s) }

// answerTime is how long after a request its answer may still be published: longer than any method's caller waits.
const answerTime = time.Minute

// Row is what one service does: subjects of the contract, each by its own name.
type Row struct {
	Calls     []string // methods of others
	Serves    []string // its own methods, in the queue group that has the service's name
	Publishes []string // events
	Listens   []string // events
}

// Of gives a service's row. A call that the code makes and its row lacks would time out; a test holds each to the code.
func Of(s Service) Row {
	switch s {
	case Gateway:
		return Row{Calls: []string{
			clusterv1.PingMethod.Subject, clusterv1.Create.Subject, clusterv1.List.Subject, clusterv1.Get.Subject, clusterv1.Update.Subject,
			clusterv1.Delete.Subject, clusterv1.Retry.Subject, clusterv1.Events.Subject, clusterv1.Kubeconfig.Subject,
			clusterv1.Members.Subject, clusterv1.SetMember.Subject, clusterv1.RemoveMember.Subject,
			tokenv1.PingMethod.Subject, tokenv1.Create.Subject, tokenv1.List.Subject, tokenv1.Revoke.Subject, tokenv1.JoinScript.Subject,
			nodev1.PingMethod.Subject, nodev1.List.Subject,
			edgev1.PingMethod.Subject, edgev1.Status.Subject,
		}}
	case Cluster:
		return Row{
			Calls: []string{tokenv1.Forget.Subject},
			Serves: []string{
				clusterv1.PingMethod.Subject, clusterv1.Create.Subject, clusterv1.List.Subject, clusterv1.Get.Subject, clusterv1.Update.Subject,
				clusterv1.Delete.Subject, clusterv1.Retry.Subject, clusterv1.Events.Subject, clusterv1.Kubeconfig.Subject,
				clusterv1.CreateKubeconfig.Subject, clusterv1.Kubeconfigs.Subject, clusterv1.RevokeKubeconfig.Subject, clusterv1.RevokeKubeconfigsOf.Subject,
				clusterv1.Members.Subject, clusterv1.SetMember.Subject, clusterv1.RemoveMember.Subject,
				clusterv1.Published.Subject, clusterv1.ReportEdge.Subject,
			},
			Publishes: []string{clusterv1.Changed.Subject},
		}
	case Token:
		return Row{
			Calls: []string{clusterv1.Get.Subject},
			Serves: []string{
				tokenv1.PingMethod.Subject, tokenv1.Create.Subject, tokenv1.List.Subject, tokenv1.Revoke.Subject, tokenv1.JoinScript.Subject,
				tokenv1.Forget.Subject,
			},
		}
	case Node:
		return Row{
			Calls:  []string{clusterv1.Get.Subject},
			Serves: []string{nodev1.PingMethod.Subject, nodev1.List.Subject},
		}
	case Edge:
		return Row{
			Calls:   []string{clusterv1.Published.Subject, clusterv1.ReportEdge.Subject},
			Serves:  []string{edgev1.PingMethod.Subject, edgev1.Status.Subject},
			Listens: []string{clusterv1.Changed.Subject},
		}
	}
	return Row{}
}

// publish lists the subjects that s may publish to. Answers are not among them: it may answer what it was asked, once.
func publish(s Service) []string {
	row := Of(s)
	return slices.Concat(row.Calls, row.Publishes)
}

// subscribe lists what s may subscribe to: its methods in its own queue group alone, its events, its own inbox.
func subscribe(s Service) []string {
	row := Of(s)
	var all []string
	for _, subject := range row.Serves {
		all = append(all, subject+" "+string(s))
	}
	return append(append(all, row.Listens...), rpc.InboxPrefix(s.ConnectionName())+".>")
}
