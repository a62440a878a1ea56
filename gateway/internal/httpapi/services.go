package httpapi

import (
	"context"
	"encoding/json"

	"github.com/nats-io/nats.go"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
	"github.com/kubebyon/kubebyon/pkg/rpc"
)

// unread is m whose answer stays as the service wrote it: to decode a thousand nodes and to encode them again takes longer
// than the tenant's API takes to list them. The contract's types are what both ends hold to.
func unread[Req, Res any](m contract.Method[Req, Res]) contract.Method[Req, json.RawMessage] {
	return contract.Method[Req, json.RawMessage](m)
}

type call[Req, Res any] = func(context.Context, Req) (Res, error)

// Services are the methods that the edge forwards to. Each fails with a fault.
type Services struct {
	createCluster call[clusterv1.CreateRequest, clusterv1.Cluster]
	listClusters  call[clusterv1.ListRequest, json.RawMessage]
	getCluster    call[clusterv1.GetRequest, clusterv1.Cluster]
	updateCluster call[clusterv1.UpdateRequest, clusterv1.Cluster]
	deleteCluster call[clusterv1.DeleteRequest, clusterv1.Cluster]
	retryCluster  call[clusterv1.RetryRequest, clusterv1.Cluster]
	clusterEvents call[clusterv1.EventsRequest, clusterv1.EventsResponse]
	kubeconfig    call[clusterv1.KubeconfigRequest, clusterv1.KubeconfigResponse]
	members       call[clusterv1.MembersRequest, clusterv1.MembersResponse]
	setMember     call[clusterv1.SetMemberRequest, clusterv1.Member]
	removeMember  call[clusterv1.RemoveMemberRequest, clusterv1.RemoveMemberResponse]
	createToken   call[tokenv1.CreateRequest, tokenv1.CreateResponse]
	listTokens    call[tokenv1.ListRequest, tokenv1.ListResponse]
	revokeToken   call[tokenv1.RevokeRequest, tokenv1.Token]
	joinScript    call[tokenv1.JoinScriptRequest, tokenv1.JoinScriptResponse]
	listNodes     call[nodev1.ListRequest, json.RawMessage]
	edgeStatus    call[edgev1.StatusRequest, edgev1.StatusResponse]

	connected func() bool
	pings     []ping // in the order in which /readyz shows them
}

type ping struct {
	name string
	call call[contract.Ping, contract.Pong]
}

// NewServices calls them over conn.
func NewServices(conn *nats.Conn) Services {
	return Services{
		createCluster: rpc.Client(conn, clusterv1.Create),
		listClusters:  rpc.Client(conn, unread(clusterv1.List)),
		getCluster:    rpc.Client(conn, clusterv1.Get),
		updateCluster: rpc.Client(conn, clusterv1.Update),
		deleteCluster: rpc.Client(conn, clusterv1.Delete),
		retryCluster:  rpc.Client(conn, clusterv1.Retry),
		clusterEvents: rpc.Client(conn, clusterv1.Events),
		kubeconfig:    rpc.Client(conn, clusterv1.Kubeconfig),
		members:       rpc.Client(conn, clusterv1.Members),
		setMember:     rpc.Client(conn, clusterv1.SetMember),
		removeMember:  rpc.Client(conn, clusterv1.RemoveMember),
		createToken:   rpc.Client(conn, tokenv1.Create),
		listTokens:    rpc.Client(conn, tokenv1.List),
		revokeToken:   rpc.Client(conn, tokenv1.Revoke),
		joinScript:    rpc.Client(conn, tokenv1.JoinScript),
		listNodes:     rpc.Client(conn, unread(nodev1.List)),
		edgeStatus:    rpc.Client(conn, edgev1.Status),
		connected:     conn.IsConnected,
		pings: []ping{
			{"cluster", rpc.Client(conn, clusterv1.PingMethod)},
			{"token", rpc.Client(conn, tokenv1.PingMethod)},
			{"node", rpc.Client(conn, nodev1.PingMethod)},
			{"edge", rpc.Client(conn, edgev1.PingMethod)},
		},
	}
}
