// SPDX-License-Identifier: Apache-2.0
// `koho logits`: the logits of every token of one prompt, as a NumPy file.
#include <cstdio>
#include <memory>

#include "app/command.h"
#include "app/generator.h"
#include "app/id_file.h"
#include "app/loaded_model.h"

namespace koho::app {
namespace {

struct LogitsOptions {
  std::string model;
  std::string ids;
  std::string out;
  std::int64_t threads = 0;
  std::int64_t chunk = 512;
};

/// A .npy file of float32 [rows, columns], version 1.0 of the format (numpy.lib.format).
class NumpyWriter {
 public:
  static Result<NumpyWriter> create(const std::string& path,
                                    std::int64_t rows,
                                    std::int64_t columns) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) return make_error(ErrorCode::io_error, "cannot write {}", path);
    NumpyWriter writer(file, path);
    std::string header = fmt::format(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
    constexpr std::size_t kPreamble = 10;  // magic, version, length
    header.resize((header.size() + kPreamble + 1 + 63) / 64 * 64 - kPreamble - 1, ' ');
    header += '\n';
    std::string preamble = "\x93NUMPY";
    preamble += {'\x01', '\x00', static_cast<char>(header.size() & 0xFFU),
                 static_cast<char>(header.size() >> 8U)};
    const std::string start = preamble + header;
    KOHO_TRY(writer.write(std::as_bytes(std::span<const char>(start))));
    return writer;
  }

  Status write(std::span<const std::byte> bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size()) return {};
    return make_error(ErrorCode::io_error, "cannot write {}", path_);
  }

  Status close() {
    if (std::fclose(file_.release()) == 0) return {};
    return make_error(ErrorCode::io_error, "cannot write {}", path_);
  }

 private:
  struct Closer {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  NumpyWriter(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}
  std::unique_ptr<std::FILE, Closer> file_;
  std::string path_;
};

Status run(const LogitsOptions& options) {
  KOHO_TRY_ASSIGN(const std::vector<std::int32_t> ids, read_id_file(options.ids));
  if (ids.empty())
    return make_error(ErrorCode::invalid_argument, "{} holds no token ids", options.ids);
  KOHO_TRY_ASSIGN(const LoadedModel model, load_model(options.model));
  const auto tokens = static_cast<std::int64_t>(ids.size());
  if (tokens > model.config.max_position_embeddings)
    return make_error(ErrorCode::invalid_argument, "{} tokens exceed the model's {} positions",
                      tokens, model.config.max_position_embeddings);
  KOHO_TRY_ASSIGN(Generator generator,
                  Generator::create(model, {.context_max = tokens,
                                            .chunk_max = std::min(tokens, options.chunk),
                                            .threads = options.threads,
                                            .all_logits = true}));
  KOHO_TRY_ASSIGN(NumpyWriter file,
                  NumpyWriter::create(options.out, tokens, model.config.vocab_size));
  KOHO_TRY(generator.logits(
      ids, [&](std::span<const float> rows) { return file.write(std::as_bytes(rows)); }));
  return file.close();
}

}  // namespace

Runner add_logits(CLI::App& command) {
  auto options = std::make_shared<LogitsOptions>();
  command.add_option("--model", options->model, "Model directory")->required();
  command.add_option("--ids", options->ids, "A file with a JSON array of token ids")->required();
  command.add_option("--out", options->out, "The .npy file to write: float32 [tokens, vocabulary]")
      ->required();
  command.add_option("--threads", options->threads, "CPU threads; 0 = all cores")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--chunk", options->chunk, "Tokens computed in one step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.footer("Example:\n  koho logits --model models/tiny --ids ids.json --out logits.npy");
  return [options] { return run(*options); };
}

}  // namespace koho::app
