// SPDX-License-Identifier: Apache-2.0
#include "app/peer_flags.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/text.h"

namespace koho::app {
namespace {

using Takes = PeerFlag::Takes;
using Verdict = PeerFlag::Verdict;

constexpr auto kSame = Verdict::as_it_is;
constexpr auto kRenamed = Verdict::renamed;
constexpr auto kRefused = Verdict::refused;
constexpr auto kNone = Takes::nothing;
constexpr auto kValue = Takes::value;
constexpr auto kMaybe = Takes::maybe;

// Of a flag with several rows the first that holds for the value counts.
constexpr PeerFlag kTable[] = {
    // ---- the model and its numbers
    {"--model-path", kValue, "", kRenamed, "--model"},
    {"--dtype", kValue, "auto,bfloat16,bf16", kSame,
     "koho computes in BF16, with weights as the checkpoint has them"},
    {"--dtype", kValue, "", kRefused,
     "koho computes in BF16, with weights as the checkpoint has them"},
    {"--quantization,-q", kValue, "fp8,compressed-tensors,auto", kSame,
     "the checkpoint says how its weights are quantised"},
    {"--quantization,-q", kValue, "", kRefused,
     "koho reads FP8 (compressed-tensors, fp8) and BF16 checkpoints"},
    {"--trust-remote-code", kNone, "", kSame, "koho runs no code of a model directory"},
    {"--tokenizer-mode,--config-format,--model-impl", kValue, "auto,hf,fast,vllm,sglang", kSame,
     "koho reads the files of Hugging Face itself"},
    {"--tokenizer,--tokenizer-path,--hf-config-path", kValue, "", kRefused,
     "the tokenizer and the config are those of the model's directory"},
    {"--revision", kValue, "", kRefused, "the model's name has it: NAME@REVISION"},
    {"--tokenizer-revision", kValue, "", kRefused, "the tokenizer is the model's"},
    {"--download-dir,--hf-token,-hft", kValue, "", kRefused,
     "the environment has them: HF_HUB_CACHE, HF_TOKEN"},
    {"--offline", kNone, "", kRefused, "the environment has it: HF_HUB_OFFLINE=1"},
    {"--hf-repo,-hf,-hfr,--hf-file,-hff,--model-url,-mu,--docker-repo,-dr", kValue, "", kRefused,
     "give the name itself as the model, zai-org/GLM-4.7-FP8; koho reads no GGUF"},
    {"--task,--runner,--convert", kValue, "auto,generate,none", kSame, "koho generates text"},
    {"--generation-config", kValue, "auto", kSame,
     "the defaults of sampling are those of generation_config.json"},
    {"--override-generation-config", kValue, "", kRefused, "a request carries its own sampling"},
    {"--language-model-only", kNone, "", kSame, "the model reads text only"},
    {"--no-mmproj,--no-mmproj-auto", kNone, "", kSame, "the model reads text only"},
    {"--limit-mm-per-prompt,--mm-processor-cache-type,--mm-encoder-tp-mode,--mmproj,-mm,--mmproj-,-"
     "-media-path",
     kValue, "", kRefused, "the model reads text only"},
    {"--enable-lora", kNone, "", kRefused, "koho has no LoRA"},
    {"--lora-modules,--lora-paths,--lora", kValue, "", kRefused, "koho has no LoRA"},
    {"--rope-scaling,--rope-scale,--rope-theta,--rope-freq-base,--rope-freq-scale,--yarn-,--"
     "override-kv,--hf-overrides",
     kValue, "", kRefused, "the model is as its config.json says"},
    {"--code-revision", kValue, "", kSame, "koho runs no code of a model directory"},
    {"--mm-,--enable-mm-,--limit-mm-,--media-,--allowed-media-,--allowed-local-media-path,--video-,"
     "--interleave-mm-strings,--enable-multimodal,--asr-,--encoder-,--image-processor-backend",
     kValue, "", kRefused, "the model reads text only"},
    {"--lora-,--max-lora-,--max-loras,--max-loras-per-batch,--max-cpu-loras,--max-loaded-loras,--"
     "fully-sharded-loras,--default-mm-loras,--enable-lora-,--experts-shared-outer-loras",
     kValue, "", kRefused, "koho has no LoRA"},
    {"--mamba-,--enable-mamba-,--max-mamba-cache-size,--linear-attn-,--gdn-,--kda-,--dsa-,--dsv4-,-"
     "-swa-,--diffusion-,--dllm-",
     kValue, "", kRefused, "glm4_moe has no such layers"},
    {"--embedding,--embeddings,--rerank,--reranking,--spm-infill", kNone, "", kRefused,
     "koho generates text, from text or token ids"},
    {"--control-vector,--control-vector-", kValue, "", kRefused, "koho has no control vectors"},
    {"--models-dir,--models-preset,--models-max", kValue, "", kRefused,
     "a server has one model; start one for each"},
    {"--is-embedding,--pooling,--pooler-config,--enable-prompt-embeds,--skip-tokenizer-init,--"
     "tokens-only",
     kValue, "", kRefused, "koho generates text, from text or token ids"},
    {"--quantization-config,--quantization-param-path,--quantize-and-serve,--modelopt-", kValue, "",
     kRefused, "the checkpoint says how its weights are quantised"},
    {"--model-loader-extra-config,--max-parallel-loading-workers,--safetensors-,--weight-loader-"
     "prefetch-num-threads",
     kValue, "", kSame, "safetensors files are mapped, and all ranks load at once"},
    {"--check-tensors,--repack,-nr,--no-repack,--no-host,--direct-io,-dio,--no-direct-io,-ndio,"
     "--op-offload,--no-op-offload",
     kNone, "", kSame,
     "every tensor is checked at the start, and laid out as the kernels of --device read it"},
    {"--sleep-idle-seconds", kValue, "-1", kSame, "weights are loaded once, at the start"},
    {"--sleep-idle-seconds", kValue, "", kRefused, "weights are loaded once, at the start"},
    {"--weight-loader-prefetch-checkpoints,--use-tqdm-on-load", kNone, "", kSame,
     "safetensors files are mapped, and all ranks load at once"},
    {"--enable-sleep-mode,--sleep-mode-,--enable-memory-saver,--weight-transfer-config,--weight-"
     "cache-,--remote-instance-weight-loader-,--checkpoint-engine-wait-weights-before-ready",
     kValue, "", kRefused, "weights are loaded once, at the start"},

    // ---- chat
    {"--jinja", kNone, "", kSame, "GLM's chat templates are built in (--chat-template)"},
    {"--no-jinja", kNone, "", kRefused, "GLM's chat templates are built in (--chat-template)"},
    {"--chat-template-content-format", kValue, "auto,string,openai", kSame,
     "koho takes both forms of content"},
    {"--enable-auto-tool-choice", kNone, "", kSame, "tool calls are always enabled"},
    {"--tool-call-parser,--tool-parser", kValue, "glm*,auto", kSame,
     "the parser of GLM is built in"},
    {"--tool-call-parser,--tool-parser", kValue, "", kRefused,
     "the model is a GLM, whose parser is built in: glm47 or glm45"},
    {"--reasoning-parser", kValue, "glm*,auto", kSame, "the parser of GLM is built in"},
    {"--reasoning-parser", kValue, "", kRefused,
     "the model is a GLM, whose parser is built in: glm45"},
    {"--reasoning-format", kValue, "auto,deepseek", kSame,
     "reasoning is apart from the answer, as reasoning_content"},
    {"--reasoning-format", kValue, "", kRefused,
     "reasoning is apart from the answer; a request with separate_reasoning false has it inside"},
    {"--reasoning,-rea", kValue, "on,auto", kSame, "the model thinks first"},
    {"--reasoning,-rea", kValue, "", kRefused,
     "use --no-thinking (of serve: --chat-template-kwargs '{\"enable_thinking\": false}')"},
    {"--reasoning-budget", kValue, "-1", kSame, "reasoning is unlimited"},
    {"--reasoning-budget", kValue, "0", kRefused,
     "use --no-thinking (of serve: --chat-template-kwargs '{\"enable_thinking\": false}')"},
    {"--reasoning-budget", kValue, "", kRefused, "a request says so: thinking_budget"},
    {"--enable-prompt-tokens-details", kNone, "", kSame, "usage always has cached_tokens"},
    {"-i", kValue, "", kRenamed, "--input-file"},
    {"-o", kValue, "", kRenamed, "--output-file"},
    {"-cnv,--conversation,-i,--interactive,-if", kNone, "", kRefused, "use koho chat DIR"},
    {"-no-cnv,--no-conversation,-st,--single-turn,--no-display-prompt", kNone, "", kSame,
     "koho run answers once, without the prompt"},
    {"--response-role", kValue, "assistant", kSame, "an answer is the assistant's"},
    {"--reasoning-parser-plugin,--tool-parser-plugin,--io-processor-plugin,--middleware,--worker-"
     "cls,--worker-extension-cls,--scheduler-cls,--model-class-overrides,--custom-weight-loader,--"
     "forward-hooks",
     kValue, "", kRefused, "koho runs no code of others"},
    {"--tool-server", kValue, "", kRefused, "koho calls no tools: its client does"},
    {"--chat-template-file,--hf-chat-template-name,--completion-template,--trust-request-chat-"
     "template",
     kValue, "", kRefused, "GLM's chat templates are built in (--chat-template)"},
    {"--enable-cache-report", kNone, "", kSame, "usage always has cached_tokens"},
    {"--enable-force-include-usage,--stream-response-default-include-usage", kNone, "", kRefused,
     "a request says so: stream_options with include_usage"},
    {"--return-tokens-as-token-ids", kNone, "", kRefused,
     "a request says so: return_tokens_as_token_ids"},
    {"--max-logprobs", kValue, "20", kSame, "a request may ask for 20"},
    {"--max-logprobs", kValue, "", kRefused, "a request may ask for 20"},
    {"--logprobs-mode", kValue, "raw_logprobs", kSame,
     "log probabilities are the model's, before temperature and penalties"},
    {"--logprobs-mode", kValue, "", kRefused,
     "log probabilities are the model's, before temperature and penalties"},
    {"--sampling-defaults", kValue, "model", kSame,
     "the defaults of sampling are those of generation_config.json"},
    {"--preferred-sampling-params", kValue, "", kRefused,
     "use --temperature, --top-p, --top-k and --min-p"},

    // ---- ranks and devices
    {"--distributed-executor-backend", kValue, "mp,uni", kSame, "koho starts the ranks itself"},
    {"--distributed-executor-backend", kValue, "", kRefused, "koho starts the ranks itself"},
    {"--pipeline-parallel-size,--pp-size,-pp,--pp,--nnodes,--decode-context-parallel-size,-dcp",
     kValue, "1", kSame, "koho runs on one machine, every layer on every rank"},
    {"--node-rank", kValue, "0", kSame, "koho runs on one machine"},
    {"--pipeline-parallel-size,--pp-size,-pp,--pp,--nnodes,--node-rank,--dist-init-addr,"
     "--decode-context-parallel-size,-dcp",
     kValue, "", kRefused, "koho runs on one machine, every layer on every rank (--ranks)"},
    {"--disable-custom-all-reduce", kNone, "", kSame, "koho chooses the collectives itself"},
    {"--all2all-backend,--moe-a2a-backend,--moe-backend,--moe-runner-backend,--attention-backend,"
     "--decode-attention-backend,--prefill-attention-backend,--sampling-backend,--grammar-backend,"
     "--guided-decoding-backend,--structured-outputs-config.backend",
     kValue, "", kSame, "koho has one of these, its own"},
    {"--enable-eplb", kNone, "", kRefused, "koho has no redundant experts"},
    {"-ngl,--n-gpu-layers,--gpu-layers", kValue, "all,auto,-1,>=93", kSame,
     "all layers run on --device"},
    {"-ngl,--n-gpu-layers,--gpu-layers", kValue, "0", kRefused, "use --device cpu"},
    {"-ngl,--n-gpu-layers,--gpu-layers", kValue, "", kRefused,
     "all layers run on --device, never only some"},
    {"-dev", kValue, "", kRefused, "use --device cuda, and --devices 0,1 for some of the GPUs"},
    {"--list-devices", kNone, "", kRefused, "koho inspect DIR lists the GPUs"},
    {"-mg,--main-gpu", kValue, "0", kSame, "koho starts at GPU 0"},
    {"-mg,--main-gpu", kValue, "", kRefused, "CUDA_VISIBLE_DEVICES chooses GPUs"},
    {"-sm,--split-mode", kValue, "none", kSame, "one GPU, unless the model needs more (--ranks)"},
    {"--rpc", kValue, "", kRefused, "koho runs on one machine"},
    {"-sm,--split-mode,-ts,--tensor-split", kValue, "", kRefused, "use --ranks N"},
    {"-ot,--override-tensor,-ncmoe,--n-cpu-moe,--kt-", kValue, "", kRefused,
     "all weights are on --device, never a part on the host"},
    {"-cmoe,--cpu-moe", kNone, "", kRefused,
     "all weights are on --device, never a part on the host"},
    {"--cpu-offload-gb", kValue, "0", kSame, "all weights are on --device"},
    {"--cpu-offload-gb", kValue, "", kRefused,
     "all weights are on --device, never a part on the host"},
    {"-fit,--fit", kMaybe, "", kSame, "the memory plan is made at the start (koho inspect)"},
    {"-fitt,--fit-target,-fitc,--fit-ctx", kValue, "", kSame,
     "the memory plan is made at the start (koho inspect)"},
    {"--prio,--prio-batch,--poll,--poll-batch,-C,--cpu-mask,-Cr,--cpu-range,--cpu-strict,--numa",
     kValue, "", kSame, "the system places the threads; nice, taskset and numactl change that"},
    {"-tb,--threads-batch", kValue, "", kRefused, "--threads is for prefill and decode alike"},
    {"--eplb-,--ep-num-redundant-experts,--ep-dispatch-algorithm,--init-expert-location,--expert-"
     "placement-strategy,--expert-distribution-,--elastic-ep-,--enable-elastic-",
     kValue, "", kRefused, "koho has no redundant experts"},
    {"--disaggregation-,--kv-transfer-config,--ec-transfer-config,--enable-pd-role-switch,--enable-"
     "pdmux",
     kValue, "", kRefused, "every replica computes prompts and answers"},
    {"--kv-events-config", kValue, "", kRefused,
     "koho publishes no KV events; a router keeps a session on its replica (deploy/haproxy)"},
    {"--data-parallel-,-dpa,-dpb,-dpe,-dph,-dpl,-dpn,-dpp,-dpr,--headless,--master-addr,--master-"
     "port,--load-balance-method",
     kValue, "", kRefused,
     "more machines are more servers behind a router (deploy); --attention dp divides the requests "
     "of one"},
    {"--device-ids,--base-gpu-id,--gpu-id-step", kValue, "", kRefused, "use --devices"},
    {"--enable-symm-mem,--enable-torch-symm-mem,--enable-mscclpp,--enable-p2p-check,--enable-"
     "flashinfer-allreduce-fusion,--pre-warm-nccl",
     kNone, "", kSame, "koho chooses the collectives itself"},
    {"--enable-dp-lm-head,--enable-dbo,--enable-two-batch-overlap,--enable-single-batch-overlap,--"
     "disable-shared-experts-fusion",
     kNone, "", kSame, "koho divides layers and overlaps work in its own way"},
    {"--deepep-mode,--deepep-config,--moe-dense-tp-size", kValue, "", kSame,
     "koho divides layers and overlaps work in its own way"},

    // ---- memory and batching
    {"--swap-space", kValue, "", kSame,
     "a preempted request is computed again, nothing is swapped"},
    {"--block-size,--page-size", kValue, "64", kSame, "a KV page holds 64 tokens"},
    {"--block-size,--page-size", kValue, "", kRefused, "a KV page holds 64 tokens"},
    {"-ctk,--cache-type-k,-ctv,--cache-type-v", kValue, "bf16,f16", kSame,
     "keys and values are BF16"},
    {"-ctk,--cache-type-k,-ctv,--cache-type-v", kValue, "", kRefused,
     "use --kv-dtype fp8 (of serve: --kv-cache-dtype)"},
    {"--calculate-kv-scales", kNone, "", kSame, "FP8 keys and values have scales of their own"},
    {"--enable-chunked-prefill,--enable-mixed-chunk,-cb,--cont-batching,--async-scheduling", kNone,
     "", kSame, "koho always does so"},
    {"--no-enable-chunked-prefill,-nocb,--no-cont-batching", kNone, "", kRefused,
     "koho always batches continuously and prefills in chunks"},
    {"-kvu,--kv-unified,--disable-hybrid-kv-cache-manager", kNone, "", kSame,
     "all requests and all layers share one KV cache"},
    {"-b,--batch-size", kValue, "", kRenamed, "--batch"},
    {"-b,--batch-size,-ub,--ubatch-size", kValue, "", kSame,
     "koho chooses the tokens of a step (--prefill-chunk)"},
    {"--scheduling-policy,--schedule-policy", kValue, "fcfs,priority", kSame,
     "requests run in order of priority, then of arrival"},
    {"--scheduling-policy,--schedule-policy", kValue, "", kRefused,
     "requests run in order of priority, then of arrival"},
    {"-fa,--flash-attn", kMaybe, "on,auto,1,true", kSame,
     "attention never writes its scores to memory"},
    {"-fa,--flash-attn", kMaybe, "", kRefused, "attention never writes its scores to memory"},
    {"--mmap", kNone, "", kSame, "weights are mapped"},
    {"--no-mmap,--mlock", kNone, "", kRefused,
     "a CPU reads the mapped files, a GPU has its own copy; nothing is locked"},
    {"-kvo,--kv-offload", kNone, "", kSame, "the KV cache is on --device"},
    {"-nkvo,--no-kv-offload", kNone, "", kRefused, "the KV cache is on --device"},
    {"-dt,--defrag-thold", kValue, "", kSame, "pages of the KV cache leave no holes"},
    {"--cache-prompt", kNone, "", kSame, "prompts share what they begin with (--no-prefix-cache)"},
    {"-cram,--cache-ram,-ctxcp,--ctx-checkpoints,--swa-checkpoints,--cache-reuse,-sps,"
     "--slot-prompt-similarity",
     kValue, "", kSame, "prompts share what they begin with, whole pages of the one KV cache"},
    {"--slot-save-path", kValue, "", kRefused, "the KV cache is not written to files"},
    {"--keep", kValue, "0", kSame, "an answer ends where the context is full"},
    {"--keep", kValue, "", kRefused, "an answer ends where the context is full"},
    {"--context-shift", kNone, "", kRefused, "an answer ends where the context is full"},
    {"--no-context-shift", kNone, "", kSame, "an answer ends where the context is full"},
    {"--max-total-tokens", kValue, "", kRefused, "use --kv-pages, of 64 tokens each"},
    {"--enable-hierarchical-cache,--enable-hicache,--hicache-,--enable-lmcache,--lmcache-,--enable-"
     "flexkv,--flexkv-,--kv-offloading-,--offload-,--cpu-offload-params",
     kValue, "", kRefused, "weights and KV cache are on --device, never a part on the host"},
    {"--radix-eviction-policy", kValue, "lru", kSame,
     "the page that was used longest ago is evicted"},
    {"--radix-eviction-policy", kValue, "", kRefused,
     "the page that was used longest ago is evicted"},
    {"--prefix-caching-hash-algo", kValue, "", kSame,
     "a page is found by its hash and believed for its tokens"},
    {"--schedule-conservativeness,--max-prefill-tokens,--prefill-max-requests,--long-prefill-token-"
     "threshold,--num-continuous-decode-steps,--scheduler-recv-interval",
     kValue, "", kSame,
     "koho plans each step itself (--max-num-batched-tokens, --inter-token-ms-max)"},
    {"--enable-priority-scheduling", kNone, "", kSame,
     "requests run in order of priority, then of arrival"},
    {"--stream-interval", kValue, "1", kSame, "each token is sent when it is there"},
    {"--stream-interval", kValue, "", kRefused, "each token is sent when it is there"},
    {"--disable-overlap-schedule", kNone, "", kRefused,
     "steps always overlap with the work around them"},

    // ---- how it runs
    {"--enforce-eager,--disable-cuda-graph", kNone, "", kSame,
     "CUDA graphs run the same kernels and stay enabled"},
    {"--compilation-config,-O,--cuda-graph-max-bs,--max-seq-len-to-capture", kValue, "", kSame,
     "nothing is compiled at the start; koho captures the graphs it needs"},
    {"--enable-torch-compile", kNone, "", kSame, "nothing is compiled at the start"},
    {"--no-warmup,--warmup,--skip-server-warmup", kNone, "", kSame, "koho needs no warm-up"},
    {"--spec-,--speculative-,-md,--model-draft,--draft,--draft-,-devd,--device-draft,-ngld,--gpu-"
     "layers-draft,"
     "--n-gpu-layers-draft,-cd,--ctx-size-draft,-ctkd,-ctvd,-hfd,--mtp",
     kValue, "", kRefused,
     "koho has no speculative decoding yet; leave it out: the answers are the same, one token a "
     "step"},
    {"--enable-custom-logit-processor,--logits-processors", kNone, "", kRefused,
     "koho runs no code of others"},
    {"--dynatemp-range", kValue, "0,0.0", kSame, "the temperature is fixed"},
    {"--mirostat,--mirostat-,--dynatemp-,--dry-,--xtc-,--samplers,--sampler-seq,--typical,--top-"
     "nsigma",
     kValue, "", kRefused, "koho has no such sampler (koho serve --help-sampling lists its own)"},
    {"-cc,--cuda-graph-,--cudagraph-,--max-cudagraph-capture-size,--torch-compile-max-bs,--"
     "optimization-level,--performance-mode,--kernel-config,--attention-config,-ac,--linear-"
     "backend,--fp8-gemm-backend,--bf16-gemm-backend",
     kValue, "", kSame,
     "nothing is compiled at the start; koho has its own kernels and captures the graphs it needs"},
    {"--disable-cuda-graph-padding,--disable-flashinfer-autotune,--enable-flashinfer-autotune,--"
     "disable-cascade-attn",
     kNone, "", kSame, "koho has its own kernels"},
    {"--otlp-,--enable-trace,--trace-modules,--collect-detailed-traces,--profiler-config,--enable-"
     "layerwise-nvtx-",
     kValue, "", kRefused,
     "koho exports no traces; its times are in /metrics and in timings of a request"},

    // ---- the server
    {"--metrics,--slots,--props,--webui,--enable-metrics", kNone, "", kSame,
     "koho always has them"},
    {"--backend-sampling,-bs", kNone, "", kSame, "tokens are sampled on --device"},
    {"--perf,--no-perf", kNone, "", kSame, "the times are in timings of a request"},
    {"--log-prefix,--log-timestamps,--no-log-prefix,--no-log-timestamps", kNone, "", kSame,
     "a line of the log has time and level (--log-format)"},
    {"--log-disable", kNone, "", kRefused, "use --log-level error"},
    {"--log-file", kValue, "", kRefused, "the log goes to standard error"},
    {"--log-colors", kMaybe, "", kRefused, "use --color"},
    {"-to,--timeout", kValue, "", kRefused,
     "a client that is slow or silent is cut off after a fixed time (docs/server.md)"},
    {"--reuse-port", kNone, "", kRefused, "one server has the port; a proxy in front divides"},
    {"--path,--webui-config,--webui-config-file", kValue, "", kRefused,
     "the page is in the program, its settings in the browser"},
    {"--no-slots,--no-webui", kNone, "", kRefused, "koho always has them; --api-key guards them"},
    {"--disable-uvicorn-access-log,--disable-fastapi-docs", kNone, "", kSame, "koho has neither"},
    {"--uvicorn-log-level,--verbosity,-lv", kValue, "", kRefused, "use --log-level"},
    {"-v,--verbose,--log-verbose,--verbose-prompt", kNone, "", kRefused, "use --log-level debug"},
    {"--kv-cache-free-gpu-memory-fraction", kValue, "", kRefused,
     "use --gpu-memory-utilization, the share of weights and KV cache together"},
    {"--max-num-queued-tokens", kValue, "", kRefused, "use --max-num-queued-reqs"},
    {"--enable-request-id-headers,--enable-server-load-tracking", kNone, "", kSame,
     "koho always has x-request-id and /load"},
    {"--root-path,--fastapi-root-path,--api-prefix", kValue, "", kRefused,
     "the proxy in front takes the prefix off"},
    {"--uds,--grpc,--grpc-,--enable-http2,--http2-", kValue, "", kRefused,
     "koho answers HTTP/1.1 on a TCP port"},
    {"--ssl-ca-certs,--ssl-cert-reqs,--ssl-ciphers,--ssl-keyfile-password,--enable-ssl-refresh",
     kValue, "", kRefused, "--tls-cert and --tls-key are all there is; a proxy in front has more"},
    {"--allow-credentials,--allowed-methods,--allowed-headers", kValue, "", kRefused,
     "use --allowed-origins"},
    {"--admin-api-key", kValue, "", kRefused, "use --api-key-file"},
    {"--api-server-count,--tokenizer-worker-num,--detokenizer-worker-num,--renderer-num-workers",
     kValue, "", kSame, "one process reads, tokenizes and answers on threads of its own"},
    {"--enable-log-outputs,--enable-log-deltas,--max-log-len,--log-requests-", kValue, "", kRefused,
     "the log has a line a request, never its text"},
    {"--log-config-file,--logging-config,--log-level-http,--disable-access-log-for-endpoints",
     kValue, "", kRefused, "use --log-level and --log-format"},
    {"--bucket-,--prompt-tokens-buckets,--generation-tokens-buckets,--custom-histogram-buckets",
     kValue, "", kRefused, "the buckets of /metrics are fixed"},

    // ---- other names
    {"-n,--predict,--n-predict,--max-new-tokens", kValue, "", kRenamed, "--max-tokens"},
    {"-c,--ctx-size,--max-model-len,--context-length,--max-seq-len", kValue, "", kRenamed,
     "--context"},
    {"-t", kValue, "", kRenamed, "--threads"},
    {"--temp", kValue, "", kRenamed, "--temperature"},
    {"-s,--random-seed", kValue, "", kRenamed, "--seed"},
    {"--repeat-penalty", kValue, "", kRenamed, "--repetition-penalty"},
    {"-sys,--system-prompt", kValue, "", kRenamed, "--system"},
    {"-p,--prompt", kValue, "", kRenamed, "--chat"},
    {"-tp,--tp,--tp-size,--tensor-parallel-size", kValue, "", kRenamed, "--ranks"},
    {"-tp,--tp,--tp-size,--tensor-parallel-size,--ranks", kValue, "", kRenamed, "--gpus"},
    {"--kv-cache-dtype", kValue, "", kRenamed, "--kv-dtype"},
    {"-np,--parallel,--max-num-seqs,--max-running-requests,--max-concurrency", kValue, "", kRenamed,
     "--concurrency"},
    {"--num-prompts", kValue, "", kRenamed, "--requests"},
    {"--input-len,--random-input-len", kValue, "", kRenamed, "--prompt-len"},
    {"--output-len,--random-output-len", kValue, "", kRenamed, "--gen-len"},
    {"--input-len,--output-len,--num-iters,--num-iters-warmup", kValue, "", kRefused,
     "koho bench measures whole requests; bench latency times steps (--batch, --context, --steps)"},
    {"--max-num-batched-tokens,--chunked-prefill-size", kValue, "", kRenamed, "--prefill-chunk"},
    {"--num-gpu-blocks-override", kValue, "", kRenamed, "--kv-pages"},
    {"--no-enable-prefix-caching,--disable-radix-cache", kNone, "", kRenamed, "--no-prefix-cache"},
    {"--no-cache-prompt", kNone, "", kRenamed, "--no-prefix-cache"},
    {"--grammar-file", kValue, "", kRenamed, "--grammar"},
    {"-jf,--json-schema-file", kValue, "", kRenamed, "--json-schema"},
    {"-n,--n-gen", kValue, "", kRenamed, "--gen-len"},
    {"-p,--n-prompt", kValue, "", kRenamed, "--prompt-len"},

    // ---- of a request, where a command has no flag for it
    {"--repeat-penalty,--repetition-penalty", kValue, "1,1.0", kSame, "1 is no penalty"},
    {"--presence-penalty,--frequency-penalty", kValue, "0,0.0", kSame, "0 is no penalty"},
    {"--repeat-penalty,--repetition-penalty,--presence-penalty,--frequency-penalty", kValue, "",
     kRefused, "a request says so: repetition_penalty, presence_penalty, frequency_penalty"},
    {"--repeat-last-n", kValue, "", kSame, "penalties count the whole prompt and answer"},
    {"-n,--predict,--n-predict,--max-tokens", kValue, "-1", kSame,
     "an answer ends with the model, or with the context"},
    {"-n,--predict,--n-predict,--max-tokens", kValue, "", kRefused,
     "a request says so: max_tokens"},
    {"--ignore-eos", kNone, "", kRefused, "a request says so: ignore_eos"},
    {"-l,--logit-bias", kValue, "", kRefused, "a request says so: logit_bias"},
    {"-sp,--special", kNone, "", kRefused, "a request says so: skip_special_tokens false"},
    {"--grammar,--grammar-file,--json-schema,-j,-jf,--json-schema-file", kValue, "", kRefused,
     "a request says so: structured_outputs or response_format"},
    {"--reverse-prompt", kValue, "", kRefused, "a request says so: stop"},
    {"-sys,--system-prompt,-p,--prompt", kValue, "", kRefused,
     "a request has the messages, koho run its prompt"},
};

bool has_flag(const PeerFlag& row, std::string_view flag) {
  return std::ranges::any_of(split(row.flags, ','), [flag](std::string_view name) {
    return flag == name || (name.ends_with('-') && flag.starts_with(name));
  });
}

/// Whether the row holds for `value`. A flag that stands alone is as good as "on".
bool holds_for(const PeerFlag& row, std::string_view value) {
  if (row.values.empty() || row.takes == Takes::nothing) return true;
  if (row.takes == Takes::maybe && value.empty()) value = "on";
  return std::ranges::any_of(split(row.values, ','), [value](std::string_view item) {
    if (item.starts_with(">=")) {
      const auto number = parse_integer<std::int64_t>(value);
      return number && *number >= parse_integer<std::int64_t>(item.substr(2)).value_or(0);
    }
    if (item.ends_with('*')) return value.starts_with(item.substr(0, item.size() - 1));
    return value == item;
  });
}

std::string with_value(const PeerFlag& row, std::string_view flag, std::string_view value) {
  if (row.takes == Takes::nothing || value.empty()) return std::string(flag);
  return fmt::format("{} {}", flag, value);
}

}  // namespace

bool takes_next(const PeerFlag& row, std::string_view next) {
  constexpr std::array<std::string_view, 7> kWords{"on", "off", "auto", "0", "1", "true", "false"};
  if (row.takes == Takes::maybe) return std::ranges::find(kWords, next) != kWords.end();
  return row.takes == Takes::value && !next.starts_with("--");
}

std::optional<PeerFlag> find_peer_flag(std::string_view flag,
                                       std::optional<std::string_view> value,
                                       const std::function<bool(std::string_view)>& has) {
  std::optional<PeerFlag> found;
  for (const PeerFlag& row : kTable) {
    if (!has_flag(row, flag)) continue;
    if (row.verdict == Verdict::renamed && !has(row.says)) continue;
    const bool own = value && takes_next(row, *value);
    if (holds_for(row, own ? *value : std::string_view())) return row;
    if (!found) found = row;
  }
  if (found) found->verdict = Verdict::refused;
  return found;
}

std::string note_of(const PeerFlag& row, std::string_view flag, std::string_view value) {
  return fmt::format("{} has no effect: {}", with_value(row, flag, value), row.says);
}

Error refusal_of(const PeerFlag& row, std::string_view flag, std::string_view value) {
  return make_error(ErrorCode::invalid_argument, "{} is not supported: {}",
                    with_value(row, flag, value), row.says);
}

std::string peer_flags_text() {
  std::string out =
      "Flags of vLLM, SGLang and llama.cpp that koho does not have itself. Those that serve has "
      "under "
      "their\nown names (koho serve --help) need no translation.\n";
  for (const auto& [verdict, title] :
       {std::pair(Verdict::renamed, "Taken as another flag, where a command has that"),
        std::pair(Verdict::as_it_is, "Accepted, with a line that says why nothing changes"),
        std::pair(Verdict::refused, "Refused, with the reason")}) {
    out += fmt::format("\n{}:\n", title);
    for (const PeerFlag& row : kTable) {
      if (row.verdict != verdict) continue;
      const std::string_view values =
          row.values.empty() && row.takes == Takes::value && verdict != Verdict::renamed
              ? "VALUE"
              : row.values;
      out += fmt::format("  {}{}{}\n      {}\n", row.flags, values.empty() ? "" : " ", values,
                         row.says);
    }
  }
  return out;
}

}  // namespace koho::app
