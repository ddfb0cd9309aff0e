package injector

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-xds/holdfast/internal/inject"
)

// The results of reviews, as the metric has them.
const (
	resultInjected = "injected"
	resultAlready  = "already-injected" // by `holdfast inject`
	resultLeft     = "left-alone"       // its label or annotation says so
	resultSkipped  = "skipped"          // no pod that is created, or in a namespace that is never injected
	resultRejected = "rejected"         // cannot be injected; created without sidecars
	resultDenied   = "denied"           // cannot be injected; not created
	resultInvalid  = "invalid"          // no review that could be answered
)

var results = []string{resultInjected, resultAlready, resultLeft, resultSkipped, resultRejected, resultDenied, resultInvalid}

// neverInjected are namespaces whose pods a cluster cannot do without, besides the injector's own.
var neverInjected = []string{"kube-system", "kube-public", "kube-node-lease"}

// reviewer answers admission requests. It may be used concurrently.
type reviewer struct {
	settings  *atomic.Pointer[Settings]
	namespace string // the injector's own
	deny      bool   // pods that cannot be injected
	log       *slog.Logger
}

// subject are the fields of a pod that a message or a decision needs.
type subject struct {
	Metadata struct {
		Name, GenerateName string
	}
}

func (s subject) name() string {
	if s.Metadata.Name == "" {
		return s.Metadata.GenerateName
	}
	return s.Metadata.Name
}

// review returns the response to a request and its result. It does not change the cluster: dry runs are like others.
func (r *reviewer) review(req *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, string) {
	response := &admissionv1.AdmissionResponse{UID: req.UID, Allowed: true}
	pods := req.Resource.Group == "" && req.Resource.Resource == "pods" && req.SubResource == ""
	if !pods || req.Operation != admissionv1.Create || req.Namespace == r.namespace || slices.Contains(neverInjected, req.Namespace) {
		return response, resultSkipped
	}
	patch, warnings, result, err := r.patch(req)
	var pod subject
	_ = json.Unmarshal(req.Object.Raw, &pod) // only for its name: patch has read it
	log := r.log.With("namespace", req.Namespace, "pod", pod.name())
	switch {
	case err != nil && r.deny:
		log.Warn("pod denied", "err", err)
		response.Allowed = false
		response.Result = &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: 403, Message: fmt.Sprintf("holdfast cannot be injected into pod %s: %v", pod.name(), err)}
		return response, resultDenied
	case err != nil:
		log.Warn("pod created without a sidecar", "err", err)
		response.Warnings = []string{fmt.Sprintf("holdfast is not injected into pod %s: %v", pod.name(), err)}
		return response, resultRejected
	}
	log.Debug("pod reviewed", "result", result)
	for _, w := range warnings {
		response.Warnings = append(response.Warnings, "holdfast: "+w)
	}
	if len(patch) > 0 {
		kind := admissionv1.PatchTypeJSONPatch
		response.Patch, response.PatchType = patch, &kind
	}
	return response, result
}

func (r *reviewer) patch(req *admissionv1.AdmissionRequest) (patch []byte, warnings []string, result string, err error) {
	injected, err := inject.Injected(req.Object.Raw)
	if err != nil {
		return nil, nil, "", err
	}
	if injected {
		return nil, nil, resultAlready, nil
	}
	patch, warnings, err = inject.Patch(req.Object.Raw, r.settings.Load().Of(req.Namespace))
	if errors.Is(err, inject.ErrLeftAlone) {
		return nil, nil, resultLeft, nil
	}
	return patch, warnings, resultInjected, err
}

// errNoReview is the error for a request that is no AdmissionReview.
var errNoReview = errors.New("want an AdmissionReview of admission.k8s.io/v1 with a request")

// answer returns the response to the body of a request.
func (r *reviewer) answer(body []byte) ([]byte, string, error) {
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, resultInvalid, fmt.Errorf("%w: %w", errNoReview, err)
	}
	if review.Request == nil || review.Kind != "AdmissionReview" || review.APIVersion != admissionv1.SchemeGroupVersion.String() {
		return nil, resultInvalid, errNoReview
	}
	response, result := r.review(review.Request)
	text, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
	return text, result, err
}
