package httpapi

import (
	"net/http"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

type (
	member struct {
		clusterv1.Member

		Email string `json:"email,omitempty"` // empty: the account was deleted
	}
	memberBody struct {
		Member member `json:"member"`
	}
	membersBody struct {
		Members []member `json:"members"`
	}
)

func (s *Server) listMembers(w http.ResponseWriter, r *http.Request) error {
	services, id, err := s.onCluster(r)
	if err != nil {
		return err
	}
	identity, err := s.withIdentity()
	if err != nil {
		return err
	}
	found, err := services.members(r.Context(), clusterv1.MembersRequest{ID: id})
	if err != nil {
		return err
	}
	ids := make([]string, 0, len(found.Members))
	for _, m := range found.Members {
		ids = append(ids, m.UserID)
	}
	emails, err := identity.Directory.Emails(r.Context(), ids)
	if err != nil {
		return err
	}
	body := membersBody{Members: make([]member, 0, len(ids))}
	for _, m := range found.Members {
		body.Members = append(body.Members, member{m, emails[m.UserID]})
	}
	return writeJSON(w, http.StatusOK, body)
}

// setMember takes an address, as people know one another by it. For docs/security.md: an owner of any cluster, and so
// everybody who may create one, learns from the 404 account_not_found whether an address has an account. Without it a typing
// error would share a cluster with nobody and say that all is well. Strangers learn nothing, whoever asks has a name in the
// audit log, and the route counts with the limit of log-ins.
func (s *Server) setMember(w http.ResponseWriter, r *http.Request) error {
	services, id, err := s.onCluster(r)
	if err != nil {
		return err
	}
	identity, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[struct {
		Email  string           `json:"email"`
		Access clusterv1.Access `json:"access"`
	}](w, r)
	if err != nil {
		return err
	}
	if err := required("email", body.Email); err != nil {
		return err
	}
	if err := required("access", string(body.Access)); err != nil {
		return err
	}
	concernsEmail(r, body.Email)
	// Before the address is looked up: who may not add it is not told whether it is known.
	if _, err := services.getCluster(r.Context(), clusterv1.GetRequest{ID: id, Need: clusterv1.Owner}); err != nil {
		return err
	}
	userID, err := identity.Directory.ID(r.Context(), body.Email)
	if err != nil {
		return err
	}
	concerns(r, userID)
	set, err := services.setMember(r.Context(), clusterv1.SetMemberRequest{ID: id, UserID: userID, Access: body.Access})
	if err != nil {
		return err
	}
	emails, err := identity.Directory.Emails(r.Context(), []string{set.UserID})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, memberBody{member{set, emails[set.UserID]}})
}

func (s *Server) removeMember(w http.ResponseWriter, r *http.Request) error {
	services, id, err := s.onCluster(r)
	if err != nil {
		return err
	}
	userID := r.PathValue("user_id")
	if !userIDForm.MatchString(userID) {
		return fault.New(fault.NotFound, "member_not_found", "the cluster has no such member")
	}
	if _, err := services.removeMember(r.Context(), clusterv1.RemoveMemberRequest{ID: id, UserID: userID}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
