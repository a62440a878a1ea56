package kubetest_test

import (
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
)

func TestShared(t *testing.T) {
	cfg := kubetest.Shared(t)
	a, b := kubetest.Namespace(t, cfg), kubetest.Namespace(t, kubetest.Shared(t))
	if a == b {
		t.Fatal("two namespaces with one name")
	}
	from, err := clientcmd.BuildConfigFromFlags("", kubetest.Kubeconfig(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(from)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().Get(t.Context(), a, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	v, err := client.Discovery().ServerVersion()
	if err != nil || v.GitVersion != kubetest.Version {
		t.Fatalf("%v, %v", v, err)
	}
}

func TestControllerManagerDeletesNamespaces(t *testing.T) {
	cfg := kubetest.Start(t, kubetest.ControllerManager())
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ns := kubetest.Namespace(t, cfg)
	if err := client.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if _, err := client.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return
		}
	}
	t.Fatal("the namespace is still there")
}

// failing records what a test would have died of.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Helper() {}
func (f *failing) Fatalf(format string, args ...any) {
	f.text = strings.ReplaceAll(format, "%v", args[0].(error).Error())
	panic(f)
}

func TestMissingBinariesFailWithWhatToRun(t *testing.T) {
	t.Setenv("KUBEBYON_CACHE", t.TempDir())
	f := &failing{TB: t}
	func() {
		defer func() { _ = recover() }()
		kubetest.Start(f)
	}()
	if !strings.Contains(f.text, "go run ./deploy/devhost build") {
		t.Fatalf("got %q", f.text)
	}
}
