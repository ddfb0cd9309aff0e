package injector

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

// admissionReview is an AdmissionReview of which only what is used is decoded. Whoever reaches the port decides what is in
// one: the rest (who asks, options, the object before) is checked to be JSON and takes no memory.
type admissionReview struct {
	metav1.TypeMeta
	Request *admissionRequest `json:"request"`
}

type admissionRequest struct {
	UID         types.UID                   `json:"uid"`
	Resource    metav1.GroupVersionResource `json:"resource"`
	SubResource string                      `json:"subResource"`
	Namespace   string                      `json:"namespace"`
	Operation   admissionv1.Operation       `json:"operation"`
	Object      json.RawMessage             `json:"object"`
}

const (
	// maxName is the longest name of an object of Kubernetes; before it is checked, a name may have any length.
	maxName = 253
	// maxReason is how many bytes of an error, which may quote the pod, are logged and answered.
	maxReason = 1 << 10
)

// start returns a text that has at most so many bytes.
func start(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// review returns the response to a request and its result. It does not change the cluster: dry runs are like others.
func (r *reviewer) review(req *admissionRequest) (*admissionv1.AdmissionResponse, string) {
	response := &admissionv1.AdmissionResponse{UID: req.UID, Allowed: true}
	pods := req.Resource.Group == "" && req.Resource.Resource == "pods" && req.SubResource == ""
	if !pods || req.Operation != admissionv1.Create || req.Namespace == r.namespace || slices.Contains(neverInjected, req.Namespace) {
		return response, resultSkipped
	}
	name, patch, warnings, result, err := r.patch(req)
	log := r.log.With("namespace", start(req.Namespace, maxName), "pod", name)
	if err != nil {
		err = errors.New(start(err.Error(), maxReason))
	}
	switch {
	case err != nil && r.deny:
		log.Warn("pod denied", "err", err)
		response.Allowed = false
		response.Result = &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: 403, Message: fmt.Sprintf("holdfast cannot be injected into pod %s: %v", name, err)}
		return response, resultDenied
	case err != nil:
		log.Warn("pod created without a sidecar", "err", err)
		response.Warnings = []string{fmt.Sprintf("holdfast is not injected into pod %s: %v", name, err)}
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

func (r *reviewer) patch(req *admissionRequest) (name string, patch []byte, warnings []string, result string, err error) {
	pod, err := inject.NewReview(req.Object)
	if pod != nil {
		name = start(pod.Name(), maxName)
	}
	switch {
	case err != nil:
		return name, nil, nil, "", err
	case pod.Injected():
		return name, nil, nil, resultAlready, nil
	}
	patch, warnings, err = pod.Patch(r.settings.Load().Of(req.Namespace))
	if errors.Is(err, inject.ErrLeftAlone) {
		return name, nil, nil, resultLeft, nil
	}
	return name, patch, warnings, resultInjected, err
}

// errNoReview is the error for a request that is no AdmissionReview.
var errNoReview = errors.New("want an AdmissionReview of admission.k8s.io/v1 with a request")

// answer returns the response to the body of a request.
func (r *reviewer) answer(body []byte) ([]byte, string, error) {
	var review admissionReview
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
