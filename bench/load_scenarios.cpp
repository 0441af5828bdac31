// SPDX-License-Identifier: Apache-2.0
#include "bench/load_scenarios.h"

#include <algorithm>
#include <utility>

#include "bench/load_paced_server.h"

namespace koho::bench {
namespace {

std::unique_ptr<LoadServer> or_miss(Result<std::unique_ptr<LoadServer>> server,
                                    Findings& findings) {
  if (server.ok()) return std::move(*server);
  findings.miss(server.error().message);
  return nullptr;
}

}  // namespace

Findings::Findings(std::string_view scenario, const Run& run)
    : brief_(run.brief), rows_(run.rows), json_(fmt::format(R"({{"op":"{}")", scenario)) {}

bool Findings::print() const {
  rows_.push_back(fmt::format(R"({},"missed":{}}})", json_, log::quoted(missed_)));
  fmt::print("{}\n", rows_.back());
  std::fflush(stdout);
  return missed_.empty();
}

std::unique_ptr<LoadServer> Run::start(const LoadServerOptions& options, Findings& findings) const {
  return or_miss(PacedLoadServer::start(tokenizer, options), findings);
}

std::unique_ptr<LoadServer> Run::start_koho(const LoadServerOptions& options,
                                            Findings& findings) const {
  if (koho.path.empty()) return start(options, findings);
  return or_miss(KohoLoadServer::start(koho, options), findings);
}

Grid Run::grid_of(const LoadServer& server) const {
  return {server.begin_us(), server.period_us(), PacedLoadServer::vocabulary(tokenizer)};
}

double percentile_ms(std::vector<std::int32_t>& values, double share) {
  if (values.empty()) return 0.0;
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at / 1e3;
}

std::string post(std::string_view path,
                 std::string_view body,
                 bool keep_alive,
                 std::string_view key) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Connection: {}\r\n{}{}{}Content-Length: {}\r\n\r\n{}",
      path, keep_alive ? "keep-alive" : "close", key.empty() ? "" : "Authorization: Bearer ", key,
      key.empty() ? "" : "\r\n", body.size(), body);
}

std::string completion(int tokens, std::string_view more, bool keep_alive) {
  return post("/v1/completions",
              fmt::format(R"({{"model":"load","prompt":[1,2,3,4],"max_tokens":{},)"
                          R"("ignore_eos":true,"stream":true,"return_token_ids":true{}}})",
                          tokens, more),
              keep_alive);
}

std::string chat(int tokens, bool keep_alive) {
  return post("/v1/chat/completions",
              fmt::format(R"({{"model":"load","messages":[{{"role":"user","content":"Hello."}}],)"
                          R"("max_tokens":{},"ignore_eos":true,"stream":true,)"
                          R"("return_token_ids":true}})",
                          tokens),
              keep_alive);
}

std::int64_t now_us() {
  return SteadyClock().now_us();
}

void end_well(LoadServer& server, Findings& findings, std::int64_t patience_us) {
  if (const std::string left = server.leftovers(patience_us); !left.empty())
    findings.miss("left over: " + left);
  const std::int64_t begin = now_us();
  if (const std::string wrong = server.end(); !wrong.empty()) findings.miss(wrong);
  // Nothing runs.
  findings.in_full_at_most("end_s", static_cast<double>(now_us() - begin) / 1e6, 10.0);
}

void tell_streams(Findings& findings, Tally& tally, std::int64_t wanted) {
  findings.is("complete", static_cast<double>(tally.complete), static_cast<double>(wanted));
  findings.is("errors", static_cast<double>(tally.errors), 0);
  for (const auto& [what, count] : tally.faults) findings.miss(fmt::format("{}: {}", what, count));
}

}  // namespace koho::bench
