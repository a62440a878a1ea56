package apitoken

import (
	"regexp"
	"slices"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// What a token may do beyond nothing. Write includes Read.
const (
	Read  = "read"
	Write = "write"
	// forCluster stands before the id of a cluster that the token is narrowed to.
	forCluster = "cluster:"
)

var clusterScope = regexp.MustCompile(`^cluster:cl_[a-z0-9]{20}$`)

// Scopes are sorted, each once, and hold Read or Write.
type Scopes []string

// NewScopes fails with invalid where a name is none, where neither Read nor Write is among them, and where they are
// narrowed to more clusters than a principal carries.
func NewScopes(names []string) (Scopes, error) {
	refused := func(format string, args ...any) error {
		return fault.New(fault.Invalid, "scopes_invalid", format, args...).In("scopes").
			Do("give read or write, and cluster:cl_… for each of at most %d clusters that it is to be narrowed to", contract.MaxPrincipalClusters)
	}
	if len(names) > contract.MaxPrincipalClusters+2 {
		return nil, refused("these are too many scopes")
	}
	for i, name := range names {
		if name != Read && name != Write && !clusterScope.MatchString(name) {
			return nil, refused("scopes[%d] is no scope", i)
		}
	}
	scopes := Scopes(slices.Clone(names))
	slices.Sort(scopes)
	scopes = slices.Compact(scopes)
	switch {
	case !scopes.Allow(Read):
		return nil, refused("neither read nor write is among the scopes")
	case len(scopes.Clusters()) > contract.MaxPrincipalClusters:
		return nil, refused("these are more than %d clusters", contract.MaxPrincipalClusters)
	}
	return scopes, nil
}

// Allow reports whether what needs Read or Write is allowed.
func (s Scopes) Allow(need string) bool {
	return slices.Contains(s, Write) || (need == Read && slices.Contains(s, Read))
}

// Clusters are the only ones that the token reaches; none: all that its account may see.
func (s Scopes) Clusters() (ids []string) {
	for _, name := range s {
		if id, ok := strings.CutPrefix(name, forCluster); ok {
			ids = append(ids, id)
		}
	}
	return ids
}
