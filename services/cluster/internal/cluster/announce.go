package cluster

import (
	"context"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
)

// Announced is a store that tells of each cluster that was created, changed, finished or removed, once that is committed.
// Nothing waits for whom it tells, and what does not get told is found by who looks from time to time.
type Announced struct {
	Store
	WorkStore
	tell func(clusterv1.ChangedEvent)
}

// Announce gives a store that tells tell, which must not block.
func Announce(store interface {
	Store
	WorkStore
}, tell func(clusterv1.ChangedEvent)) *Announced {
	return &Announced{Store: store, WorkStore: store, tell: tell}
}

func (s *Announced) announce(id string, changed bool, err error) {
	if changed && err == nil {
		s.tell(clusterv1.ChangedEvent{ID: id})
	}
}

// Create implements Store.
func (s *Announced) Create(ctx context.Context, c Cluster, e clusterv1.Event) (Cluster, error) {
	made, err := s.Store.Create(ctx, c, e)
	s.announce(c.ID, true, err)
	return made, err
}

// Update implements Store.
func (s *Announced) Update(ctx context.Context, id, userID string, decide func(Cluster) (Change, clusterv1.Event, error)) (Cluster, error) {
	changed := false
	c, err := s.Store.Update(ctx, id, userID, func(c Cluster) (Change, clusterv1.Event, error) {
		ch, e, err := decide(c)
		changed = ch != (Change{})
		return ch, e, err
	})
	s.announce(id, changed, err)
	return c, err
}

// Delete implements Store.
func (s *Announced) Delete(ctx context.Context, id, userID string, r clusterv1.Removal, allow func(Cluster) error, events ...clusterv1.Event) (Cluster, error) {
	changed := false
	c, err := s.Store.Delete(ctx, id, userID, r, func(c Cluster) error {
		changed = c.Status != clusterv1.Deleting
		return allow(c)
	}, events...)
	s.announce(id, changed, err)
	return c, err
}

// Finish implements WorkStore.
func (s *Announced) Finish(ctx context.Context, c Cluster, o Outcome, e clusterv1.Event) (bool, error) {
	current, err := s.WorkStore.Finish(ctx, c, o, e)
	s.announce(c.ID, current, err)
	return current, err
}

// Remove implements WorkStore.
func (s *Announced) Remove(ctx context.Context, id string) error {
	err := s.WorkStore.Remove(ctx, id)
	s.announce(id, true, err)
	return err
}
