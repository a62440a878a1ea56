package cluster

import (
	"slices"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// noAccess is what a stranger has: to it the cluster does not exist.
const noAccess clusterv1.Access = ""

// accesses are in the order in which each includes the ones before it.
var accesses = [...]clusterv1.Access{noAccess, clusterv1.Viewer, clusterv1.Editor, clusterv1.Owner}

// rank is an access's place in that order, negative for what is none.
func rank(a clusterv1.Access) int { return slices.Index(accesses[:], a) }

// accessOf is the one place that decides what a principal may do with a cluster; membership is what the cluster's members
// say of its account. What narrows a principal counts for all, administrators and creators too.
func accessOf(p contract.Principal, c clusterv1.Cluster, membership clusterv1.Access) clusterv1.Access {
	if p.UserID == "" || len(p.Clusters) > 0 && !slices.Contains(p.Clusters, c.ID) {
		return noAccess
	}
	access := noAccess
	switch {
	case p.Role == contract.RoleAdmin, p.UserID == c.OwnerID:
		access = clusterv1.Owner
	case rank(membership) > 0:
		access = membership
	}
	if p.ReadOnly && rank(access) > rank(clusterv1.Viewer) {
		return clusterv1.Viewer
	}
	return access
}

// admit fills c's Access and fails unless it includes need: as if c were absent where the principal has none.
func admit(p contract.Principal, c *Cluster, need clusterv1.Access) error {
	c.Access = accessOf(p, c.Cluster, c.Membership)
	switch {
	case c.Access == noAccess:
		return NotFound()
	case rank(c.Access) >= rank(need):
		return nil
	}
	refused := fault.New(fault.Forbidden, "cluster_access_insufficient", "this needs the access %q to the cluster; here it is %q", need, c.Access)
	if p.ReadOnly {
		return refused.Do("use a log-in or an API token that may write")
	}
	return refused.Do("ask an owner of the cluster")
}

// mayCreate: what is narrowed to clusters that exist makes no new one, which it could not see.
func mayCreate(p contract.Principal) error {
	switch {
	case p.ReadOnly:
		return fault.New(fault.Forbidden, "read_only", "this API token may only read").Do("use a log-in or an API token that may write")
	case len(p.Clusters) > 0:
		return fault.New(fault.Forbidden, "token_narrowed", "this API token is for certain clusters and makes no new one").
			Do("use a log-in or an API token for all clusters")
	}
	return nil
}
