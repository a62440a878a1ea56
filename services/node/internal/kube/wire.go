package kube

import (
	"bytes"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Most of a node's bytes are the images on its disk and the managers of its fields, which nobody here asks for. The
// parts of the list that are wanted are cut out before Kubernetes' own decoder sees them: it takes a third of the time of
// a thousand whole nodes. The numbers are those of k8s.io/api/core/v1/generated.proto and of its imports; protobuf never
// gives one a new meaning.
var wantedOfNode = [...]uint64{ // by field of the node, a bit per field of that message
	1: 1<<1 | 1<<8 | 1<<11,       // metadata: name, creationTimestamp, labels
	2: 1<<4 | 1<<5,               // spec: unschedulable, taints
	3: 1<<1 | 1<<4 | 1<<5 | 1<<7, // status: capacity, conditions, addresses, nodeInfo
	4: 0,                         // and whatever else there may be
}

// Fields of runtime.Unknown and of NodeList.
const (
	envelopeType     protowire.Number = 1
	envelopeRaw      protowire.Number = 2
	envelopeEncoding protowire.Number = 3
	listMetadata     protowire.Number = 1
	listItems        protowire.Number = 2
)

// magic precedes every answer of type application/vnd.kubernetes.protobuf.
var magic = []byte("k8s\x00")

var errWire = errors.New("the answer is no list of nodes in protobuf")

// decode reads a NodeList as kube-apiserver sends it, with what wantedOfNode names of each node.
func decode(body []byte) (*corev1.NodeList, error) {
	enveloped, ok := bytes.CutPrefix(body, magic)
	if !ok {
		return nil, errWire
	}
	// runtime.Unknown, read in place: its own decoder copies the whole list.
	var raw []byte
	known := false
	err := walk(enveloped, func(number protowire.Number, _ protowire.Type, _, value []byte) error {
		switch number {
		case envelopeType:
			var kind runtime.TypeMeta
			if err := kind.Unmarshal(value); err != nil {
				return err
			}
			if kind.Kind != "NodeList" || kind.APIVersion != "v1" {
				return fmt.Errorf("it is a %.64q", kind.Kind)
			}
			known = true
		case envelopeRaw:
			raw = value
		case envelopeEncoding:
			if len(value) > 0 {
				return errors.New("it is encoded")
			}
		}
		return nil
	})
	count := 0
	if err == nil && !known {
		err = errors.New("it has no type")
	}
	if err == nil {
		err = walk(raw, func(number protowire.Number, _ protowire.Type, _, _ []byte) error {
			if number == listItems {
				count++
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errWire, err)
	}
	list := &corev1.NodeList{Items: make([]corev1.Node, 0, count)}
	var scratch [2][]byte
	err = walk(raw, func(number protowire.Number, kind protowire.Type, _, value []byte) error {
		switch {
		case kind != protowire.BytesType:
			return nil
		case number == listMetadata:
			return list.ListMeta.Unmarshal(value)
		case number != listItems:
			return nil
		}
		if err := cutOut(&scratch, value); err != nil {
			return err
		}
		list.Items = append(list.Items, corev1.Node{})
		return list.Items[len(list.Items)-1].Unmarshal(scratch[0]) // which copies
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errWire, err)
	}
	return list, nil
}

// cutOut puts what is wanted of a node into scratch[0]; scratch[1] holds a part of it on the way.
func cutOut(scratch *[2][]byte, node []byte) error {
	out := scratch[0][:0]
	err := walk(node, func(number protowire.Number, kind protowire.Type, _, value []byte) error {
		wanted := wantedOfNode[min(int(number), len(wantedOfNode)-1)]
		if wanted == 0 || kind != protowire.BytesType {
			return nil
		}
		part := scratch[1][:0]
		err := walk(value, func(number protowire.Number, _ protowire.Type, whole, _ []byte) error {
			if number < 64 && wanted&(1<<number) != 0 {
				part = append(part, whole...)
			}
			return nil
		})
		scratch[1] = part
		out = protowire.AppendBytes(protowire.AppendTag(out, number, protowire.BytesType), part)
		return err
	})
	scratch[0] = out
	return err
}

// walk gives each field of a message: whole with its tag, and of a field of bytes its value.
func walk(message []byte, each func(number protowire.Number, kind protowire.Type, whole, value []byte) error) error {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		size := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		var value []byte
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(message[tag:])
		}
		if err := each(number, kind, message[:tag+size], value); err != nil {
			return err
		}
		message = message[tag+size:]
	}
	return nil
}
