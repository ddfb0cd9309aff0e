package injector

import (
	"context"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// cluster is what the injector does to the API server. Errors are those of k8s.io/apimachinery/pkg/api/errors.
type cluster interface {
	secret(ctx context.Context) (*corev1.Secret, error)
	// createSecret and updateSecret fail with a conflict, or AlreadyExists, if another injector was faster.
	createSecret(ctx context.Context, s *corev1.Secret) error
	updateSecret(ctx context.Context, s *corev1.Secret) error
	configuration(ctx context.Context) (*admissionregistrationv1.MutatingWebhookConfiguration, error)
	// patchConfiguration applies a JSON patch.
	patchConfiguration(ctx context.Context, patch []byte) error
	// watch calls changed after each change of the Secret or the configuration, and returns when ctx has ended or the
	// API server ends a watch.
	watch(ctx context.Context, changed func()) error
}

// kubernetes is the cluster of an API server. It needs the verbs get, watch and update for one Secret, and get, watch and
// patch for one MutatingWebhookConfiguration; create for Secrets only if the manifests have none.
type kubernetes struct {
	secrets        coreclient.SecretInterface
	configurations admissionclient.MutatingWebhookConfigurationInterface
	secretName     string
	configName     string
}

// requestTimeout bounds each request to the API server, but watches.
const requestTimeout = 10 * time.Second

func newKubernetes(rc *rest.Config, namespace, secret, configuration string) (*kubernetes, error) {
	core, err := coreclient.NewForConfig(rc)
	if err != nil {
		return nil, err
	}
	admission, err := admissionclient.NewForConfig(rc)
	if err != nil {
		return nil, err
	}
	return &kubernetes{core.Secrets(namespace), admission.MutatingWebhookConfigurations(), secret, configuration}, nil
}

func (k *kubernetes) secret(ctx context.Context) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return k.secrets.Get(ctx, k.secretName, metav1.GetOptions{})
}

func (k *kubernetes) createSecret(ctx context.Context, s *corev1.Secret) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := k.secrets.Create(ctx, s, metav1.CreateOptions{})
	return err
}

func (k *kubernetes) updateSecret(ctx context.Context, s *corev1.Secret) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := k.secrets.Update(ctx, s, metav1.UpdateOptions{})
	return err
}

func (k *kubernetes) configuration(ctx context.Context) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return k.configurations.Get(ctx, k.configName, metav1.GetOptions{})
}

func (k *kubernetes) patchConfiguration(ctx context.Context, patch []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := k.configurations.Patch(ctx, k.configName, types.JSONPatchType, patch, metav1.PatchOptions{})
	return err
}

func (k *kubernetes) watch(ctx context.Context, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A selector for one name is what makes the API server look at the resourceNames of a role.
	only := func(name string) metav1.ListOptions {
		return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	}
	secrets, err := k.secrets.Watch(ctx, only(k.secretName))
	if err != nil {
		return err
	}
	defer secrets.Stop()
	configurations, err := k.configurations.Watch(ctx, only(k.configName))
	if err != nil {
		return err
	}
	defer configurations.Stop()
	for {
		var event watch.Event
		var ok bool
		select {
		case <-ctx.Done():
			return nil
		case event, ok = <-secrets.ResultChan():
		case event, ok = <-configurations.ResultChan():
		}
		if !ok || event.Type == watch.Error {
			return nil // it is watched again
		}
		changed()
	}
}
