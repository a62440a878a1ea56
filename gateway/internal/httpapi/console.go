package httpapi

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"reflect"
	"regexp"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// maxNodePages bounds a list of nodes. The service decides how many fit a page, at most 1,000: what is beyond is cut, and
// the answer says so.
const maxNodePages = 10

var (
	clusterIDForm = regexp.MustCompile(`^cl_[a-z0-9]{20}$`)
	tokenIDForm   = regexp.MustCompile(`^tok_[a-z0-9]{20}$`)
	fileNameForm  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
)

type (
	clusterBody struct {
		Cluster clusterv1.Cluster `json:"cluster"`
	}
	eventsBody struct {
		Events []clusterv1.Event `json:"events"`
	}
	tokenBody struct {
		Token tokenv1.Token `json:"token"`
	}
	nodesBody struct {
		Nodes     []nodev1.Node `json:"nodes"`
		Truncated bool          `json:"truncated,omitempty"`
	}
	tokensBody struct {
		Tokens []tokenv1.Token `json:"tokens"`
	}
)

// clusterID gives the path's id. One of another form names no cluster, and goes nowhere.
func clusterID(r *http.Request) (string, error) { return checkClusterID(r.PathValue("cluster_id")) }

func checkClusterID(id string) (string, error) {
	if !clusterIDForm.MatchString(id) {
		return "", fault.New(fault.NotFound, "cluster_not_found", "there is no such cluster")
	}
	return id, nil
}

func (s *Server) createCluster(w http.ResponseWriter, r *http.Request) error {
	services, err := s.withServices()
	if err != nil {
		return err
	}
	body, err := decode[clusterv1.CreateRequest](w, r)
	if err != nil {
		return err
	}
	made, err := services.createCluster(r.Context(), body)
	if err != nil {
		return err
	}
	concerns(r, made.ID)
	w.Header().Set("Location", "/api/console/clusters/"+made.ID)
	return writeJSON(w, http.StatusCreated, clusterBody{made})
}

func (s *Server) listClusters(w http.ResponseWriter, r *http.Request) error {
	services, err := s.withServices()
	if err != nil {
		return err
	}
	found, err := services.listClusters(r.Context(), clusterv1.ListRequest{})
	if err != nil {
		return err
	}
	return writeList(w, "clusters", found)
}

func (s *Server) showCluster(w http.ResponseWriter, r *http.Request) error {
	services, id, err := s.onCluster(r)
	if err != nil {
		return err
	}
	found, err := services.getCluster(r.Context(), clusterv1.GetRequest{ID: id})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, clusterBody{found})
}

// clusterChange is what may be changed of a cluster; all else of it stays, and a body that has it is told so.
type clusterChange struct {
	Name               *string               `json:"name"`
	ControlPlaneHost   *string               `json:"control_plane_host"`
	PublicAccessMode   *clusterv1.AccessMode `json:"public_access_mode"`
	DeletionProtection *bool                 `json:"deletion_protection"`
}

func (clusterChange) immutable(field string) bool {
	return hasField(reflect.TypeFor[clusterv1.Cluster](), field)
}

func (s *Server) changeCluster(w http.ResponseWriter, r *http.Request) error {
	services, id, err := s.onCluster(r)
	if err != nil {
		return err
	}
	body, err := decode[clusterChange](w, r)
	if err != nil {
		return err
	}
	if body == (clusterChange{}) {
		return fault.New(fault.Invalid, "nothing_to_change", "the body changes nothing").
			Do("give name, control_plane_host, public_access_mode or deletion_protection")
	}
	changes(r, given(body)...)
	changed, err := services.updateCluster(r.Context(), clusterv1.UpdateRequest{
		ID: id, Name: body.Name, ControlPlaneHost: body.ControlPlaneHost, PublicAccessMode: body.PublicAccessMode,
		DeletionProtection: body.DeletionProtection,
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, clusterBody{changed})
}

func (s *Server) deleteCluster(w http.ResponseWriter, r *http.Request) error {
	services, id, err := s.onCluster(r)
	if err != nil {
		return err
	}
	going, err := services.deleteCluster(r.Context(), clusterv1.DeleteRequest{ID: id})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusAccepted, clusterBody{going})
}

func (s *Server) retryCluster(w http.ResponseWriter, r *http.Request) error {
	services, id, err := s.onCluster(r)
	if err != nil {
		return err
	}
	begun, err := services.retryCluster(r.Context(), clusterv1.RetryRequest{ID: id})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusAccepted, clusterBody{begun})
}

func (s *Server) clusterEvents(w http.ResponseWriter, r *http.Request) error {
	services, id, err := s.onCluster(r)
	if err != nil {
		return err
	}
	found, err := services.clusterEvents(r.Context(), clusterv1.EventsRequest{ID: id})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, eventsBody{list(found.Events)})
}

func (s *Server) kubeconfig(w http.ResponseWriter, r *http.Request) error {
	services, id, err := s.onCluster(r)
	if err != nil {
		return err
	}
	found, err := services.kubeconfig(r.Context(), clusterv1.KubeconfigRequest{ID: id})
	if err != nil {
		return err
	}
	name := found.FileName
	if !fileNameForm.MatchString(name) {
		name = id + ".kubeconfig.yaml"
	}
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
	writeText(w, http.StatusOK, "application/yaml", []byte(found.Kubeconfig))
	return nil
}

func (s *Server) createToken(w http.ResponseWriter, r *http.Request) error {
	services, id, err := s.onCluster(r)
	if err != nil {
		return err
	}
	identity, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decodeOptional[struct {
		TTLSeconds *int64 `json:"ttl_seconds"`
	}](w, r)
	if err != nil {
		return err
	}
	now, err := identity.Settings.Read(r.Context())
	if err != nil {
		return err
	}
	made, err := services.createToken(r.Context(), tokenv1.CreateRequest{
		ClusterID: id, TTLSeconds: body.TTLSeconds, JoinBaseURL: now.JoinBaseURL,
	})
	if err != nil {
		return err
	}
	concerns(r, made.Token.ID)
	return writeJSON(w, http.StatusCreated, made)
}

func (s *Server) listTokens(w http.ResponseWriter, r *http.Request) error {
	services, id, err := s.onCluster(r)
	if err != nil {
		return err
	}
	found, err := services.listTokens(r.Context(), tokenv1.ListRequest{ClusterID: id})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, tokensBody{list(found.Tokens)})
}

func (s *Server) revokeToken(w http.ResponseWriter, r *http.Request) error {
	services, id, err := s.onCluster(r)
	if err != nil {
		return err
	}
	tokenID := r.PathValue("token_id")
	if !tokenIDForm.MatchString(tokenID) {
		return fault.New(fault.NotFound, "token_not_found", "there is no such token")
	}
	ended, err := services.revokeToken(r.Context(), tokenv1.RevokeRequest{ClusterID: id, ID: tokenID})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, tokenBody{ended})
}

func (s *Server) listNodes(w http.ResponseWriter, r *http.Request) error {
	values, err := query(r)
	if err != nil {
		return err
	}
	if values.Get("cluster_id") == "" {
		return fault.New(fault.Invalid, "field_required", "cluster_id is missing").In("cluster_id").
			Do("ask for /api/console/nodes?cluster_id=cl_…")
	}
	id, err := checkClusterID(values.Get("cluster_id"))
	if err != nil {
		return err
	}
	services, err := s.withServices()
	if err != nil {
		return err
	}
	page := nodev1.ListRequest{ClusterID: id}
	found, err := services.listNodes(r.Context(), page)
	if err != nil {
		return err
	}
	if isList(found, "nodes") {
		return writeList(w, "nodes", found) // all of them
	}
	all := nodesBody{Nodes: []nodev1.Node{}}
	for pages := 1; ; pages++ {
		var next nodev1.ListResponse
		if err := json.Unmarshal(found, &next); err != nil {
			return fault.New(fault.Internal, "reply_malformed", "a service answered something that is not an answer").Because(err)
		}
		all.Nodes = append(all.Nodes, next.Nodes...)
		if next.Continue == "" {
			break
		}
		// A page that brings nothing and asks to go on would never end.
		if pages == maxNodePages || len(next.Nodes) == 0 {
			all.Truncated = true
			break
		}
		page.Continue = next.Continue
		if found, err = services.listNodes(r.Context(), page); err != nil {
			return err
		}
	}
	return writeJSON(w, http.StatusOK, all)
}

func (s *Server) onCluster(r *http.Request) (*Services, string, error) {
	id, err := clusterID(r)
	if err != nil {
		return nil, "", err
	}
	services, err := s.withServices()
	return services, id, err
}

// list makes an empty list of none: clients get [], not null.
func list[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}

// isList reports whether a service's answer begins with the list itself: then it is the body of ours.
func isList(answer json.RawMessage, name string) bool {
	return bytes.HasPrefix(answer, []byte(`{"`+name+`":[`))
}

// writeList answers with a list as its service wrote it. One that is null, as none of ours writes it, becomes [].
func writeList(w http.ResponseWriter, name string, answer json.RawMessage) error {
	if !isList(answer, name) {
		answer = json.RawMessage(`{"` + name + `":[]}`)
	}
	writeText(w, http.StatusOK, "application/json", answer)
	return nil
}
