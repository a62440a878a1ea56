package cluster

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// MaxMembers is how many members a cluster has at most, besides the one who created it.
const MaxMembers = 200

var userIDPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// TooManyMembers is the conflict of a cluster that has MaxMembers.
func TooManyMembers() error {
	return fault.New(fault.Conflict, "too_many_members", "the cluster has %d members, which is all that it can have", MaxMembers).
		Do("remove one first")
}

// MemberNotFound says that an account has no entry among a cluster's members.
func MemberNotFound() error {
	return fault.New(fault.NotFound, "member_not_found", "the cluster has no such member")
}

// Members gives who may use the cluster, its creator first.
func (s *Service) Members(ctx context.Context, p contract.Principal, req clusterv1.MembersRequest) (clusterv1.MembersResponse, error) {
	c, err := s.find(ctx, p, req.ID, clusterv1.Viewer)
	if err != nil {
		return clusterv1.MembersResponse{}, err
	}
	rest, err := s.store.Members(ctx, req.ID)
	if err != nil {
		return clusterv1.MembersResponse{}, err
	}
	creator := clusterv1.Member{UserID: c.OwnerID, Access: clusterv1.Owner, AddedAt: c.CreatedAt}
	return clusterv1.MembersResponse{Members: append([]clusterv1.Member{creator}, rest...)}, nil
}

// SetMember adds a member or changes what it may do. Giving an access that a member has changes nothing.
func (s *Service) SetMember(ctx context.Context, p contract.Principal, req clusterv1.SetMemberRequest) (clusterv1.Member, error) {
	if err := wellFormed(req.ID, req.UserID); err != nil {
		return clusterv1.Member{}, err
	}
	m := clusterv1.Member{UserID: req.UserID, Access: req.Access, AddedBy: p.UserID, AddedAt: s.now().UTC().Truncate(time.Microsecond)}
	return s.store.SetMember(ctx, req.ID, m, func(c Cluster, before clusterv1.Access) (clusterv1.Event, error) {
		var e clusterv1.Event
		if err := admit(p, &c, clusterv1.Owner); err != nil {
			return e, err
		}
		if err := notCreator(c, req.UserID); err != nil {
			return e, err
		}
		if rank(req.Access) <= 0 {
			return e, fault.New(fault.Invalid, "access_unknown", "there is no such access").In("access").Do("use viewer, editor or owner")
		}
		if c.Status == clusterv1.Deleting {
			return e, deleting()
		}
		if before == noAccess {
			return s.event(clusterv1.Info, EventMemberAdded, fmt.Sprintf("%s was made %s by %s", req.UserID, req.Access, p.UserID)), nil
		}
		return s.event(clusterv1.Info, EventMemberChanged, fmt.Sprintf("%s was made %s by %s, and was %s", req.UserID, req.Access, p.UserID, before)), nil
	})
}

// RemoveMember takes a member's access away: from its very next request on it has none.
func (s *Service) RemoveMember(ctx context.Context, p contract.Principal, req clusterv1.RemoveMemberRequest) (clusterv1.RemoveMemberResponse, error) {
	if err := wellFormed(req.ID, req.UserID); err != nil {
		return clusterv1.RemoveMemberResponse{}, err
	}
	err := s.store.RemoveMember(ctx, req.ID, p.UserID, req.UserID, func(c Cluster) (clusterv1.Event, error) {
		need := clusterv1.Owner
		if req.UserID == p.UserID && !p.ReadOnly {
			need = clusterv1.Viewer
		}
		if err := admit(p, &c, need); err != nil {
			return clusterv1.Event{}, err
		}
		if err := notCreator(c, req.UserID); err != nil {
			return clusterv1.Event{}, err
		}
		return s.event(clusterv1.Info, EventMemberRemoved, fmt.Sprintf("%s was removed by %s", req.UserID, p.UserID)), nil
	})
	return clusterv1.RemoveMemberResponse{}, err
}

// wellFormed keeps what is no id from the store.
func wellFormed(clusterID, userID string) error {
	switch {
	case !idPattern.MatchString(clusterID):
		return NotFound()
	case !userIDPattern.MatchString(userID):
		return fault.New(fault.Invalid, "user_id_invalid", "this is no account's id").In("user_id")
	}
	return nil
}

// notCreator refuses to touch the one whose access never changes.
func notCreator(c Cluster, userID string) error {
	if userID == c.OwnerID {
		return fault.New(fault.Conflict, "creator_stays_owner", "this account created the cluster and stays an owner of it").In("user_id")
	}
	return nil
}

func deleting() error {
	return fault.New(fault.Precondition, "cluster_deleting", "the cluster is being deleted")
}
