// select_keys: the indexer of sparse attention. It scores the cached tokens of a request for each token and chooses the best.
//
// Algorithm  the score of a key is the sum over heads, in their order and from 0, of w * max(scale * dot(q, k), 0) by fused products,
//            where w is the head's weight times weights_scale; dot is the product of attention in dot order (attention/products.h).
//            NaN counts as 0 in max. Nothing is added across keys, so that no score depends on tiles, threads or vectors. Scores
//            become integers of the same order, in which -0 and 0 are equal and NaN is the least; their top_k-th is found by three
//            histograms of their bits.
// Shapes     latent/indexer.h
// Tile       up to 4 tokens x all heads, by 64 keys, which are packed once
// Threads    divide the tokens and spans of 512 keys; then the tokens, which choose
// Floor      2 * index_dim flop per head, query and key
// Achieved   one core of Zen 3, 64 heads of 128 over 8,192 keys: one token 0.60 of peak, 64 tokens 0.72
#include "latent/choice.h"
#include "latent/scores.h"
#include "pool.h"

namespace {

constexpr int64_t MOST_SCORES = 4 << 20;  // that are kept at a time: 16 MB

// The tokens of a request that have more positions than are chosen, and the request of attention that others become.
class Groups {
 public:
  explicit Groups(const SelectKeysParams& p) : p_(p) {
    int at = 0;
    for (int request = 0; request < p.requests; request++) {
      const int first = p.request_starts[request], count = p.request_starts[request + 1] - first;
      const int position = p.request_lens[request] - count, whole = std::clamp(p.top_k - position, 0, count);
      if (whole > 0) {
        list_all(at, request, position + whole);
        add(at++, first, position + whole);
      }
      for (int token = whole; token < count; token++) {
        scored.push_back({request, first + token, position + token, at});
        add(at++, first + token, p.top_k);
      }
    }
    for (; at <= p.tokens; at++) {
      p.row_starts[at] = p.tokens;
      if (at < p.tokens) p.kv_lens[at] = 0;
    }
  }

  std::vector<ScoredToken> scored;

 private:
  void add(int group, int first_token, int len) const {
    p_.row_starts[group] = first_token;
    p_.kv_lens[group] = len;
  }
  void list_all(int group, int request, int len) const {
    for (int position = 0; position < len; position++)
      p_.tables[(int64_t)group * p_.top_k + position] = slot_of(p_, request, position);
  }

  const SelectKeysParams& p_;
};

// Consecutive tokens of a request, and the keys [first_key, last_key) that they are scored with.
struct Span {
  int first, tokens, first_key, last_key;
};

// The spans of the tokens [first, last), whose scores lie one token after another from 0 on.
std::vector<Span> spans_of(const std::vector<ScoredToken>& all, int first, int last) {
  std::vector<Span> spans;
  for (int at = first, count; at < last; at += count) {
    count = 1;
    while (count < UNIT_TOKENS && at + count < last && all[at + count].request == all[at].request) count++;
    const int keys = all[at + count - 1].position + 1;
    for (int key = 0; key < keys; key += SPAN_KEYS) spans.push_back({at, count, key, std::min(key + SPAN_KEYS, keys)});
  }
  return spans;
}

template <class Kv> void select(Pool* pool, const SelectKeysParams& p) {
  Groups groups(p);
  const std::vector<ScoredToken>& all = groups.scored;
  thread_local Arena arena;
  for (int first = 0, last; first < (int)all.size(); first = last) {
    std::vector<int64_t> starts{0};  // of each token's scores, which extend to the last position of its unit
    for (last = first; last < (int)all.size() && (last == first || starts.back() < MOST_SCORES); last++)
      starts.push_back(starts.back() + scores_of(all[last].position + UNIT_TOKENS));
    int32_t* scores = (int32_t*)arena.reserve(starts.back() * sizeof(int32_t));
    const std::vector<Span> spans = spans_of(all, first, last);
    pool->run((int)spans.size(), 1, [&](int begin, int end) {
      for (int i = begin; i < end; i++) {
        const Span& span = spans[i];
        int32_t* rows[UNIT_TOKENS];
        for (int t = 0; t < span.tokens; t++) rows[t] = scores + starts[span.first - first + t];
        Scores<Kv>(p, &all[span.first], span.tokens).write(span.first_key, span.last_key, rows);
      }
    });
    pool->run(last - first, 1, [&](int begin, int end) {
      for (int i = begin; i < end; i++) choose(p, all[first + i], scores + starts[i]);
    });
  }
}

}  // namespace

void select_keys(Pool* pool, const SelectKeysParams* p) {
  if (p->dtype == DTYPE_FP32) select<KvFp32>(pool, *p);
  else if (p->dtype == DTYPE_FP16) select<KvFp16>(pool, *p);
  else select<std::conditional_t<WIDENS_BF16, KvWideBf16, KvBf16>>(pool, *p);
}
