// SPDX-License-Identifier: Apache-2.0
// Broken safetensors headers: lengths, JSON, fields, dtypes, shapes and offsets.
#include <cstdint>

#include "tests/checkpoint/mutation_table.h"

namespace koho::testing {
namespace {

/// A shard in which one tensor stands whole, with `shape`, `offsets` and data of our choice.
void one_tensor(Table& table,
                const std::string& what,
                const std::string& entry,
                const std::string& data,
                Words words) {
  words.push_back(kShard1);
  table.add("header: " + what, std::move(words), [=](DirectoryImage& image) {
    image.files[kShard1] = safetensors_from_header("{\"t\":" + entry + "}", data);
  });
}

void add_lengths(Table& table) {
  const auto length = [&](const std::string& what, std::uint64_t value, Words words) {
    words.push_back(kShard1);
    table.add("header length: " + what, std::move(words),
              [=](DirectoryImage& image) { image.set_header_length(kShard1, value); });
  };
  length("0", 0, {"{"});
  length("1", 1, {"JSON"});
  length("7", 7, {"JSON"});
  length("100 MB + 1", 100'000'001, {"100000001"});
  length("99 MB", 99'000'000, {"99000000"});
  length("2^31", std::uint64_t{1} << 31U, {"2147483648"});
  length("2^63", std::uint64_t{1} << 63U, {"9223372036854775808"});
  length("2^64 - 1", UINT64_MAX, {"18446744073709551615"});
  length("2^64 - 8", UINT64_MAX - 7, {"18446744073709551608"});
}

void add_whole_headers(Table& table) {
  const auto whole = [&](const std::string& what, const std::string& header, Words words) {
    words.push_back(kShard1);
    table.add("header: " + what, std::move(words), [=](DirectoryImage& image) {
      image.files[kShard1] = safetensors_from_header(header, "");
    });
  };
  whole("empty", "", {"{"});
  whole("array", "[]", {"{"});
  whole("starts with a blank", " {}", {"{"});
  whole("not JSON", "{hello}", {"JSON"});
  whole("half", "{\"a\":{", {"JSON"});
  whole("two", "{}{}", {"JSON"});
  whole("a zero byte", std::string("{}\0\0", 4), {"zero byte"});
  whole("bad UTF-8", "{\"\xFF\":{}}", {"UTF-8"});
  whole("bad UTF-8 in the padding", "{}\x80", {"JSON"});
  whole("deep", "{\"a\":{\"b\":" + std::string(10'000, '['), {"'a'"});
  whole("a long name", "{\"" + std::string(70'000, 'n') + "\":{}}", {"65536"});
  whole("a long number", "{\"a\":{\"shape\":[" + std::string(1000, '1') + "]}}", {"number"});
  whole("null tensor", R"({"t":null})", {"'t'", "null"});
  whole("array tensor", R"({"t":[]})", {"'t'", "array"});
  whole("metadata twice", R"({"__metadata__":{},"__metadata__":{}})", {"__metadata__", "twice"});
  whole("metadata key twice", R"({"__metadata__":{"a":"1","a":"2"}})", {"__metadata__", "'a'"});
  whole("metadata number", R"({"__metadata__":{"a":1}})", {"__metadata__", "'a'"});
  whole("metadata nested", R"({"__metadata__":{"a":{"b":"c"}}})", {"__metadata__"});
  whole("metadata array", R"({"__metadata__":[]})", {"__metadata__"});
}

void add_fields(Table& table) {
  one_tensor(table, "no dtype", R"({"shape":[1],"data_offsets":[0,1]})", "x", {"'t'", "dtype"});
  one_tensor(table, "no shape", R"({"dtype":"U8","data_offsets":[0,1]})", "x", {"'t'", "shape"});
  one_tensor(table, "no offsets", R"({"dtype":"U8","shape":[1]})", "x", {"'t'", "data_offsets"});
  one_tensor(table, "no field", "{}", "x", {"'t'", "dtype"});
  one_tensor(table, "dtype twice",
             R"({"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]})", "x",
             {"'t'", "twice"});
  one_tensor(table, "another field",
             R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[1]})", "x",
             {"'t'", "stride"});
  one_tensor(table, "unknown dtype", R"({"dtype":"F9","shape":[1],"data_offsets":[0,1]})", "x",
             {"'t'", "F9"});
  one_tensor(table, "lower-case dtype", R"({"dtype":"u8","shape":[1],"data_offsets":[0,1]})", "x",
             {"'t'", "u8"});
  one_tensor(table, "numeric dtype", R"({"dtype":8,"shape":[1],"data_offsets":[0,1]})", "x",
             {"'t'", "dtype"});
}

void add_shapes(Table& table) {
  one_tensor(table, "shape no array", R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})", "x",
             {"'t'", "shape"});
  one_tensor(table, "shape of strings", R"({"dtype":"U8","shape":["1"],"data_offsets":[0,1]})", "x",
             {"'t'", "shape"});
  one_tensor(table, "shape of fractions", R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})",
             "x", {"'t'", "shape"});
  one_tensor(table, "nested shape", R"({"dtype":"U8","shape":[[1]],"data_offsets":[0,1]})", "x",
             {});
  one_tensor(table, "negative shape", R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", "x",
             {"'t'", "-1"});
  one_tensor(table, "two negative axes", R"({"dtype":"U8","shape":[-1,-1],"data_offsets":[0,1]})",
             "x", {"'t'", "-1"});
  one_tensor(table, "five axes", R"({"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[0,1]})", "x",
             {"'t'", "axes"});
  one_tensor(table, "a product beyond 64 bits",
             R"({"dtype":"U8","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,1]})",
             "x", {"'t'", "size"});
  one_tensor(table, "a product of 2^64",
             R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})", "",
             {"'t'", "size"});
  one_tensor(table, "an axis beyond 64 bits",
             R"({"dtype":"U8","shape":[18446744073709551617],"data_offsets":[0,1]})", "x",
             {"64 bits"});
  one_tensor(table, "half a byte", R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})", "x",
             {"'t'", "whole number of bytes"});
}

void add_offsets(Table& table) {
  one_tensor(table, "no offsets in the array", R"({"dtype":"U8","shape":[1],"data_offsets":[]})",
             "x", {"'t'", "data_offsets"});
  one_tensor(table, "one offset", R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", "x",
             {"'t'", "data_offsets"});
  one_tensor(table, "three offsets", R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,1]})", "x",
             {"'t'", "data_offsets"});
  one_tensor(table, "negative offset", R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})", "x",
             {"'t'", "-1"});
  one_tensor(table, "end before begin", R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})", "x",
             {"'t'", "[1, 0]"});
  one_tensor(table, "offsets too short", R"({"dtype":"F32","shape":[1],"data_offsets":[0,3]})",
             "xyz", {"'t'", "needs 4"});
  one_tensor(table, "offsets too long", R"({"dtype":"F32","shape":[1],"data_offsets":[0,5]})",
             "vwxyz", {"'t'", "needs 4"});
  one_tensor(table, "beyond the file", R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})", "x",
             {"'t'", "truncated"});
  one_tensor(
      table, "far beyond the file",
      R"({"dtype":"U8","shape":[9223372036854775800],"data_offsets":[0,9223372036854775800]})", "x",
      {"'t'"});
  one_tensor(table, "a hole before", R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})", "xy",
             {"'t'", "hole"});
  one_tensor(table, "bytes after", R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})", "xyz",
             {"2 bytes follow"});
  one_tensor(
      table, "the same name twice",
      R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]})",
      "xy", {"'t'", "twice"});
  one_tensor(
      table, "the same name twice, escaped",
      R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0074":{"dtype":"U8","shape":[1],"data_offsets":[1,2]})",
      "xy", {"'t'", "twice"});
  one_tensor(
      table, "overlap",
      R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"U8","shape":[2],"data_offsets":[1,3]})",
      "xyz", {"'u'", "overlap"});
  one_tensor(
      table, "the same bytes twice",
      R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})",
      "xy", {"overlap"});
  one_tensor(
      table, "a hole between",
      R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]},"u":{"dtype":"U8","shape":[1],"data_offsets":[2,3]})",
      "xyz", {"'u'", "hole"});
  one_tensor(table, "escape sequences in a name",
             R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u001b[31m":{})", "x",
             {"\\x1b[31m"});
}

}  // namespace

void add_header_mutations(Table& table) {
  add_lengths(table);
  add_whole_headers(table);
  add_fields(table);
  add_shapes(table);
  add_offsets(table);
  table.header("\"dtype\":\"BF16\",\"shape\":[96,24]", "\"dtype\":\"F16\",\"shape\":[96,24]",
               {"model.embed_tokens.weight", "F16"});
  table.header("\"shape\":[96,24]", "\"shape\":[24,96]",
               {"model.embed_tokens.weight", "[24, 96]", "[96, 24]"});
  table.header("\"shape\":[96,24]", "\"shape\":[96,1,24]",
               {"model.embed_tokens.weight", "[96, 1, 24]"});
}

}  // namespace koho::testing
