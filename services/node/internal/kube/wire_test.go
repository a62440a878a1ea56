package kube

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

func encode(tb testing.TB, o runtime.Object) []byte {
	tb.Helper()
	var out bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(o, &out); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// fixture is a list of every sort of node, with what is left out of each as well.
func fixture() *corev1.NodeList {
	busy := func(n *corev1.Node) {
		n.Labels["node-role.kubernetes.io/gpu"], n.Annotations = "", map[string]string{"a": "b"}
		n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`)}}
		n.Spec = corev1.NodeSpec{PodCIDR: "10.244.1.0/24", ProviderID: "x://1", Unschedulable: true, Taints: []corev1.Taint{
			{Key: "k", Value: "v", Effect: corev1.TaintEffectNoExecute, TimeAdded: &metav1.Time{Time: born}}, {Key: "l"},
		}}
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"registry.k8s.io/pause:3.10.1"}, SizeBytes: 1 << 30}}
		n.Status.Allocatable = n.Status.Capacity
	}
	bare := func(n *corev1.Node) { *n = corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bare"}} }
	list := &corev1.NodeList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: metav1.ListMeta{ResourceVersion: "42", Continue: "next"},
	}
	for _, edit := range []func(*corev1.Node){nil, busy, bare} {
		list.Items = append(list.Items, *worker(edit))
	}
	return list
}

// What is cut out is all that shape looks at.
func TestDecodeLosesNothingThatIsShown(t *testing.T) {
	whole := fixture()
	got, err := decode(encode(t, whole))
	if err != nil {
		t.Fatal(err)
	}
	if got.Continue != "next" || len(got.Items) != len(whole.Items) {
		t.Fatalf("%q, %d nodes", got.Continue, len(got.Items))
	}
	for i := range whole.Items {
		if diff := cmp.Diff(shape(&whole.Items[i], born.Add(time.Hour)), shape(&got.Items[i], born.Add(time.Hour))); diff != "" {
			t.Error(diff)
		}
	}
	if n := got.Items[1]; n.Status.Images != nil || n.ManagedFields != nil || n.Annotations != nil || n.Status.Allocatable != nil {
		t.Error("what is not wanted was decoded")
	}
	none, err := decode(encode(t, &corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}))
	if err != nil || len(none.Items) != 0 {
		t.Errorf("an empty list: %v, %v", none, err)
	}
}

func TestDecodeRefusesWhatIsNoNodeList(t *testing.T) {
	good := encode(t, fixture())
	for name, body := range map[string][]byte{
		"nothing": nil, "JSON": []byte(`{"kind":"NodeList"}`), "magic alone": magic, "cut": good[:len(good)-7], "junk": append(bytes.Clone(magic), 0xff, 0xff, 0xff),
		"Pods": encode(t, &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}),
	} {
		if list, err := decode(body); !errors.Is(err, errWire) {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
}

// A tenant's API server may answer anything: it must not crash us, nor make an answer that is too large.
func FuzzDecode(f *testing.F) {
	f.Add(encode(f, fixture()))
	f.Add([]byte("k8s\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		list, err := decode(body)
		if err != nil {
			return
		}
		out, _ := answer(list, born)
		for i := range out.Nodes {
			if size(&out.Nodes[i]) > 256<<10 {
				t.Errorf("a node of %d bytes", size(&out.Nodes[i]))
			}
		}
	})
}
