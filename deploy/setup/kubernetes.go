package main

import (
	"context"
	"fmt"
	"io"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// attempts is how often the Secrets are read again because somebody else changed one meanwhile.
const attempts = 5

// secrets keeps each owner's files in a Secret of its own.
type secrets struct {
	client    kubernetes.Interface
	namespace string
	prefix    string // of their names
	found     map[string]*corev1.Secret
}

func (s *secrets) name(owner string) string { return s.prefix + "-" + owner }

// fill completes the Secrets. Each is written whole or not at all, and only over the version that was read.
func (s *secrets) fill(ctx context.Context, o options, report io.Writer) error {
	for try := 1; ; try++ {
		have, err := s.read(ctx)
		if err != nil {
			return err
		}
		want, err := complete(have, o)
		if err != nil {
			return err
		}
		err = s.write(ctx, have, want, report)
		if try == attempts || !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
}

func (s *secrets) read(ctx context.Context) (state, error) {
	have := state{}
	s.found = map[string]*corev1.Secret{}
	for _, owner := range owners() {
		have[owner] = map[string][]byte{}
		found, err := s.client.CoreV1().Secrets(s.namespace).Get(ctx, s.name(owner), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the Secret %s in %s: %w", s.name(owner), s.namespace, err)
		}
		s.found[owner] = found
		for _, file := range known(owner) {
			if text, ok := found.Data[file]; ok {
				have[owner][file] = text
			}
		}
	}
	return have, nil
}

func (s *secrets) write(ctx context.Context, have, want state, report io.Writer) error {
	api := s.client.CoreV1().Secrets(s.namespace)
	for _, owner := range owners() {
		files := changed(owner, have, want)
		if len(files) == 0 {
			continue
		}
		var err error
		if found := s.found[owner]; found != nil {
			if found.Immutable != nil && *found.Immutable {
				return fmt.Errorf("the Secret %s is immutable and lacks %q: make it anew with them", s.name(owner), files)
			}
			next := found.DeepCopy()
			if next.Data == nil {
				next.Data = map[string][]byte{}
			}
			maps.Copy(next.Data, want[owner])
			_, err = api.Update(ctx, next, metav1.UpdateOptions{})
		} else {
			_, err = api.Create(ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: s.name(owner), Labels: map[string]string{
					"app.kubernetes.io/part-of": "kubebyon", "app.kubernetes.io/managed-by": "kubebyon-setup",
				}},
				Type: corev1.SecretTypeOpaque, Data: want[owner],
			}, metav1.CreateOptions{})
		}
		if err != nil {
			return fmt.Errorf("the Secret %s in %s cannot be written: %w", s.name(owner), s.namespace, err)
		}
		for _, file := range files {
			fmt.Fprintf(report, "wrote %s of Secret %s\n", file, s.name(owner))
		}
	}
	return nil
}
